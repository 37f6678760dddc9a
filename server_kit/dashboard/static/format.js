// Figures and times as people read them.

const thin = " ";
const whole = new Intl.NumberFormat("en-GB");
const clockTime = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dayAndTime = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });
const UNITS = [[129600, 86400, "d"], [5400, 3600, "h"], [100, 60, "min"]]; // from where on, size, name
const NONE = "–";

export const known = (value) => value !== null && value !== undefined;
export const count = (value) => (known(value) ? whole.format(value) : NONE);
export const percent = (value) => (known(value) ? `${(value * 100).toFixed(1)}${thin}%` : NONE);
export const figure = (value, digits = 3) => (known(value) ? value.toFixed(digits) : NONE);
export const tiny = (value) => (value < 0.001 ? value.toExponential() : String(value));
export const epsilon = (value) => (known(value) ? value.toFixed(2) : NONE);
export const at = (seconds) => (known(seconds) ? dayAndTime.format(seconds * 1000) : NONE);
export const onDay = (seconds) => (known(seconds) ? day.format(seconds * 1000) : NONE);
export const atClock = (seconds) => clockTime.format(seconds * 1000);
export const devices = (value) => (value === 1 ? "1 device" : `${count(value)} devices`);

export function duration(seconds) {
  if (!known(seconds)) return NONE;
  for (const [from, size, unit] of UNITS) if (seconds >= from) return `${Math.round(seconds / size)}${thin}${unit}`;
  return `${seconds < 10 ? Number(seconds.toFixed(1)) : Math.round(seconds)}${thin}s`;
}

export function ago(then, now) {
  if (!known(then)) return "never";
  const seconds = Math.max(0, now - then);
  return seconds < 5 ? "just now" : `${duration(Math.round(seconds))} ago`;
}

export function bytes(value) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (value < 1024) return `${Math.round(value)}${thin}${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)}${thin}GiB`;
}
