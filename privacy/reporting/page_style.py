"""The style sheet of a report: light, dark, narrow and on paper, without a single thing to load."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --panel: #f4f6f8; --ink: #16191d; --muted: #5a6472; --grid: #dfe3e8; --line: #c9d0d8;
  --accent: #1c62b9; --warn: #b3261e; --warn-panel: #fdf0ee; --good: #1c6b3a; --good-panel: #eef7f1;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171b; --panel: #1d2127; --ink: #e7eaee; --muted: #a3adba; --grid: #323942; --line: #414a55;
    --accent: #7fb4f5; --warn: #ff9a8f; --warn-panel: #2c1a19; --good: #8fd3a8; --good-panel: #17251c;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem 1.25rem 3rem; max-width: 72rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; overflow-wrap: break-word;
}
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .25rem; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 2.5rem 0 .75rem; }
h3 { font-size: 1.05rem; margin: 1.5rem 0 .25rem; }
p { margin: .25rem 0 .75rem; max-width: 46rem; }
.meta, figcaption, caption, .note { color: var(--muted); font-size: .92rem; }
.verdict { border-left: .4rem solid; border-radius: .3rem; padding: .9rem 1.1rem; margin: 1.25rem 0; }
.verdict h2 { margin: 0 0 .25rem; }
.verdict > :last-child { margin-bottom: 0; }
.wrong { border-color: var(--warn); background: var(--warn-panel); }
.wrong h2, .wrong h3 { color: var(--warn); }
.right { border-color: var(--good); background: var(--good-panel); }
.right h2 { color: var(--good); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem; margin: 1.25rem 0; }
.tiles div { background: var(--panel); border-radius: .4rem; padding: .7rem .9rem; }
.tiles dt { color: var(--muted); font-size: .88rem; }
.tiles dd { margin: 0; font-size: 1.2rem; font-weight: 600; line-height: 1.4; font-variant-numeric: tabular-nums; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.5rem 2rem; }
figure { margin: 0; min-width: 0; }
figure svg { display: block; width: 100%; height: auto; max-width: 36rem; }
figure h3 { margin-top: 0; }
.figures > figure:first-child { grid-row: span 2; }
.scroll { overflow-x: auto; }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: .95rem; }
caption { text-align: left; padding-bottom: .35rem; }
.verdict caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
th, td { text-align: left; vertical-align: top; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--grid); }
thead th { border-bottom: 2px solid var(--line); font-weight: 600; vertical-align: bottom; }
tbody th { font-weight: 500; }
th:last-child, td:last-child { padding-right: 0; }
.n { text-align: right; font-variant-numeric: tabular-nums; }
td.n { white-space: nowrap; }
.where { min-width: 9rem; max-width: 22rem; overflow-wrap: anywhere; }
.bar { width: 28%; min-width: 6rem; }
.bar span { display: block; height: .7rem; margin-top: .4rem; border-radius: .15rem; background: var(--accent); }
details { margin: .75rem 0; }
summary { cursor: pointer; color: var(--accent); }
.gloss dt { font-weight: 600; margin-top: .75rem; }
.gloss dd { margin: 0; max-width: 46rem; }
code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .92em; overflow-wrap: anywhere; }
footer {
  margin-top: 3rem; border-top: 1px solid var(--grid); padding-top: .75rem; color: var(--muted); font-size: .9rem;
}
@media (max-width: 30rem) {
  body { padding: 1rem .9rem 2rem; }
  h1 { font-size: 1.4rem; }
  table { font-size: .85rem; }
  th, td { padding-right: .5rem; }
  .bar { display: none; }
  .where { min-width: 7rem; }
}
@media print {
  :root {
    color-scheme: light;
    --paper: #fff; --panel: #fff; --ink: #000; --muted: #444; --grid: #ccc; --line: #999; --accent: #1c62b9;
    --warn: #a00; --warn-panel: #fff; --good: #040; --good-panel: #fff;
  }
  body { max-width: none; padding: 0; font-size: 10pt; }
  h2, h3, caption { break-after: avoid; }
  figure, tr, .tiles div { break-inside: avoid; }
  .tiles div { border: 1px solid var(--line); }
  .scroll { overflow: visible; }
  .bar span { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  details:not([open])::details-content { content-visibility: visible; block-size: auto; }
}
"""
