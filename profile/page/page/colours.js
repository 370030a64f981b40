// Colours in light and dark. Those of languages were searched so that the nearest two are as far
// apart as possible for normal, protan and deutan sight, with a contrast of text of 4.7 or more.

// Hue, saturation and lightness by language, as in LANGUAGES, and of plumbing.
const LIGHT = [
  [221, 95, 78],
  [47, 79, 66],
  [14, 90, 66],
  [159, 35, 83],
  [267, 56, 66],
  [330, 62, 82],
  [12, 31, 54],
  [219, 4, 66],
];
const DARK = [
  [212, 53, 26],
  [41, 57, 18],
  [8, 54, 39],
  [165, 18, 33],
  [277, 35, 43],
  [330, 30, 32],
  [12, 31, 24],
  [225, 6, 18],
];
export const WAITING = 6;
export const PLUMBING = 7;

// Hues of the costliest routes, in their order, and of all others.
const ROUTE_HUES = [213, 28, 150, 330, 95, 262, 185, 52];
export const OTHER_ROUTES = ROUTE_HUES.length - 1;
export const NO_ROUTE = ROUTE_HUES.length;

// All other colours, in light and in dark.
const THEME = {
  text: ['#14161a', '#f4f5f7'],
  background: ['#ffffff', '#15171b'],
  root: ['#e3e6eb', '#343840'],
  service: ['#2b3648', '#c9d2e0'],
  serviceText: ['#ffffff', '#14161a'],
  route: ['#566378', '#8494ad'],
  routeText: ['#ffffff', '#101216'],
  // Over the part of a box in which threads did not run.
  faded: ['#ffffff99', '#15171b99'],
  joined: ['#e9ebef', '#2a2d33'],
  noRoute: ['#9aa1ab', '#6b727d'],
  queued: ['#b45309', '#f59e0b'],
  unselected: ['#dfe2e7', '#33373e'],
  focus: ['#000000', '#ffffff'],
  line: ['#80868f', '#80868f'],
};

const hsl = ([hue, saturation, lightness]) => `hsl(${hue} ${saturation}% ${lightness}%)`;

// All colours. `pale` is for time in which threads did not run: a lighter tone of each.
export function palette(dark, pale) {
  const shades = (colour, i) =>
    [0, 1, 2, 3].map(step => shade(colour, step, dark, pale && i !== WAITING));
  const route = hue => hsl([hue, 62, dark ? 62 : 47]);
  const theme = Object.entries(THEME).map(([name, values]) => [name, values[dark ? 1 : 0]]);
  return {
    ...Object.fromEntries(theme),
    dark,
    languages: (dark ? DARK : LIGHT).map(shades),
    routes: ROUTE_HUES.map(route),
  };
}

function shade([hue, saturation, lightness], step, dark, pale) {
  const level = lightness + step * 2;
  if (!pale) return hsl([hue, saturation, level]);
  return dark ? hsl([hue, saturation * 0.6, level * 0.6]) : hsl([hue, saturation, 94 - step]);
}

// Which of its language's shades a function has: steady by file, so that neighbours differ.
export function shadeOf(text) {
  let hash = 0;
  for (let i = 0; i < text.length; i++) hash = (hash * 31 + text.charCodeAt(i)) | 0;
  return (hash >>> 7) & 3;
}

// A CSS colour as a pixel of ImageData, mixed with the background by 1 − strength. The canvas
// translates colours to `#rrggbb`.
export function pixel(context, colour, background, strength) {
  const [top, below] = [colour, background].map(value => {
    context.fillStyle = value;
    return parseInt(context.fillStyle.slice(1), 16);
  });
  const byte = (value, shift) => (value >> shift) & 255;
  const mixed = shift =>
    Math.round(byte(top, shift) * strength + byte(below, shift) * (1 - strength));
  return ((255 << 24) | (mixed(0) << 16) | (mixed(8) << 8) | mixed(16)) >>> 0;
}
