// Colours in light and dark. Those of languages were searched so that the nearest two are as far apart
// as possible for normal, protan and deutan sight, with a contrast of text of 4.7 or more.

// Hue, saturation and lightness by language, as in LANGUAGES, and of plumbing.
const LIGHT = [
  [221, 95, 78],
  [47, 79, 66],
  [14, 90, 66],
  [159, 35, 83],
  [267, 56, 66],
  [330, 62, 82],
  [219, 4, 66],
];
const DARK = [
  [212, 53, 26],
  [41, 57, 18],
  [8, 54, 39],
  [165, 18, 33],
  [277, 35, 43],
  [330, 30, 32],
  [225, 6, 18],
];
export const PLUMBING = 6;

// Hues of the costliest routes, in their order, and of all others.
const ROUTE_HUES = [213, 28, 150, 330, 95, 262, 185, 52];
export const OTHER_ROUTES = ROUTE_HUES.length - 1;
export const NO_ROUTE = ROUTE_HUES.length;

const LIGHT_THEME = {
  text: '#14161a',
  background: '#ffffff',
  root: '#e3e6eb',
  service: '#2b3648',
  serviceText: '#ffffff',
  route: '#566378',
  routeText: '#ffffff',
  joined: '#e9ebef',
  noRoute: '#9aa1ab',
  unselected: '#dfe2e7',
  focus: '#000000',
  line: '#80868f',
};
const DARK_THEME = {
  text: '#f4f5f7',
  background: '#15171b',
  root: '#343840',
  service: '#c9d2e0',
  serviceText: '#14161a',
  route: '#8494ad',
  routeText: '#101216',
  joined: '#2a2d33',
  noRoute: '#6b727d',
  unselected: '#33373e',
  focus: '#ffffff',
  line: '#80868f',
};

const hsl = ([hue, saturation, lightness]) => `hsl(${hue} ${saturation}% ${lightness}%)`;

// All colours. `pale` is for time in which threads did not run: a lighter tone of each.
export function palette(dark, pale) {
  const shades = (colour) => [0, 1, 2, 3].map((step) => shade(colour, step, dark, pale));
  const route = (hue) => hsl([hue, 62, dark ? 62 : 47]);
  return {
    ...(dark ? DARK_THEME : LIGHT_THEME),
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

// A CSS colour as a pixel of ImageData, mixed with the background by 1 − strength.
export function pixel(colour, background, strength = 1) {
  const [top, below] = [bytesOf(colour), bytesOf(background)];
  const mixed = top.map((value, i) => Math.round(value * strength + below[i] * (1 - strength)));
  return ((255 << 24) | (mixed[2] << 16) | (mixed[1] << 8) | mixed[0]) >>> 0;
}

// Red, green and blue of `#rrggbb` or `hsl(h s% l%)`.
function bytesOf(colour) {
  if (colour[0] === '#') {
    const value = parseInt(colour.slice(1), 16);
    return [value >> 16, (value >> 8) & 255, value & 255];
  }
  const [hue, saturation, lightness] = colour.match(/[\d.]+/g).map(Number);
  const chroma = (saturation / 100) * Math.min(lightness / 100, 1 - lightness / 100);
  const channel = (offset) => {
    const at = (offset + hue / 30) % 12;
    return 255 * (lightness / 100 - chroma * Math.max(-1, Math.min(at - 3, 9 - at, 1)));
  };
  return [channel(0), channel(8), channel(4)];
}
