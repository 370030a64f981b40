// Zooms and searches. Both are kept in the address: `#s=TEXT` is searched for, `#z=NUMBER` zooms to
// the box with this number in the order of the file.
'use strict';
{
  const CHARACTER = 7.2;
  const SPACE = 8;
  const root = document.documentElement;
  const id = name => document.getElementById(name);
  const percent = value => Number.parseFloat(value);
  const boxes = Array.from(document.querySelectorAll('.box'), (element, index) => ({
    element,
    index,
    x: percent(element.getAttribute('x')),
    width: percent(element.getAttribute('width')),
    row: Number(element.getAttribute('y')),
    name: element.querySelector('title').textContent.split('\n')[0],
    place: element.querySelector('title').textContent.split('\n').slice(1).join('\n'),
    text: element.querySelector('text'),
    isLevel: /all|service|value/.test(element.getAttribute('class').slice(4)),
    texts: textsOf(element.querySelector('text')),
  }));
  let zoomed = boxes[0];
  let searched = '';

  // What a box may show, the longest first.
  function textsOf({ dataset, textContent }) {
    const texts = [dataset.a, dataset.b].filter(text => text !== undefined);
    if (!textContent.endsWith('…') && textContent) texts.push(textContent);
    return texts.sort((one, other) => other.length - one.length);
  }

  const isInside = (box, other) =>
    box.x >= other.x - 1e-5 && box.x + box.width <= other.x + other.width + 1e-5;

  // Of a text that is too long for its box, the start stays.
  function fit({ texts, text }, width) {
    const room = Math.floor((width - SPACE) / CHARACTER);
    const last = Array.from(texts.at(-1) ?? '');
    const cut = room > 2 && last.length > room ? `${last.slice(0, room - 1).join('')}…` : '';
    text.textContent = texts.find(it => Array.from(it).length <= room) ?? cut;
  }

  function draw() {
    const whole = root.getBoundingClientRect().width || 1200;
    for (const box of boxes) {
      const above = box.row < zoomed.row && isInside(zoomed, box);
      const shown = above || (box.row >= zoomed.row && isInside(box, zoomed));
      box.element.classList.toggle('hidden', !shown);
      if (!shown) continue;
      const x = above ? 0 : ((box.x - zoomed.x) / zoomed.width) * 100;
      const width = above ? 100 : (box.width / zoomed.width) * 100;
      box.element.setAttribute('x', `${x.toFixed(6)}%`);
      box.element.setAttribute('width', `${width.toFixed(6)}%`);
      fit(box, (whole * width) / 100);
    }
    id('reset').classList.toggle('hidden', zoomed === boxes[0]);
  }

  function zoom(box) {
    zoomed = box;
    draw();
    keep();
  }

  // So that a view can be shared.
  function keep() {
    const kept = new URLSearchParams();
    if (searched) kept.set('s', searched);
    if (zoomed !== boxes[0]) kept.set('z', zoomed.index);
    const hash = kept.size > 0 ? `#${kept}` : '#';
    if (location.hash || kept.size > 0) history.replaceState(null, '', hash);
  }

  function pattern(text) {
    try {
      return new RegExp(text, 'i');
    } catch {
      return new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'), 'i');
    }
  }

  // Marks what a search finds, and says its share: what lies below a found box counts once.
  function search(text) {
    const wanted = text ? pattern(text) : null;
    const found = [];
    for (const box of boxes) {
      const isFound =
        wanted !== null && box.index > 0 && !box.element.classList.contains('joined') &&
        (wanted.test(box.name) || (!box.isLevel && wanted.test(box.place.split(' · ')[0])));
      box.element.classList.toggle('found', isFound);
      if (isFound) found.push(box);
    }
    let share = 0;
    let end = -1;
    found.sort((one, other) => one.x - other.x || other.width - one.width);
    for (const box of found) {
      if (box.x + 1e-5 < end) continue;
      share += box.width;
      end = box.x + box.width;
    }
    id('matched').textContent = wanted ? `Matched: ${share.toFixed(1)} %` : '';
    id('search').textContent = wanted ? 'Reset search' : 'Search';
    searched = text;
    keep();
  }

  function ask() {
    if (searched) search('');
    else search(prompt('Search for a function, a file or an attribute (a regular expression)') ?? '');
  }

  for (const box of boxes) {
    if (box.element.classList.contains('joined')) continue;
    box.element.addEventListener('click', () => zoom(box));
  }
  id('search').classList.remove('hidden');
  id('search').addEventListener('click', ask);
  id('reset').addEventListener('click', () => zoom(boxes[0]));
  addEventListener('keydown', event => {
    const isFind = event.key === '/' || (event.key === 'f' && (event.ctrlKey || event.metaKey));
    if (isFind) {
      event.preventDefault();
      ask();
    } else if (event.key === 'Escape') {
      zoom(boxes[0]);
    }
  });
  root.setAttribute('width', '100%');
  addEventListener('resize', draw);
  function showAsked() {
    const asked = new URLSearchParams(location.hash.slice(1));
    searched = asked.get('s') ?? '';
    zoom(boxes[Number(asked.get('z'))] ?? boxes[0]);
    search(searched);
  }
  addEventListener('hashchange', showAsked);
  showAsked();
}
