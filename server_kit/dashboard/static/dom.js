// Elements by function call, and a page brought up to date without losing focus, scroll or what is unfolded.

const SVG = "http://www.w3.org/2000/svg";

export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function show(place, ...nodes) {
  const fresh = place.cloneNode(false);
  fresh.append(...nodes.flat(Infinity).filter(Boolean));
  mendChildren(place, fresh);
}

function mend(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  mendAttributes(old, fresh);
  mendChildren(old, fresh);
}

function mendAttributes(old, fresh) {
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    const unfolded = old.nodeName === "DETAILS" && name === "open";
    if (!fresh.hasAttribute(name) && !unfolded) old.removeAttribute(name);
  }
}

function mendChildren(old, fresh) {
  const before = [...old.childNodes];
  const after = [...fresh.childNodes];
  after.forEach((node, place) => (place < before.length ? mend(before[place], node) : old.append(node)));
  before.slice(after.length).forEach((node) => node.remove());
}
