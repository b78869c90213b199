// Connects the controls, and tests itself if the address ends in #selftest.
'use strict';

(() => {
  const byId = (id) => document.getElementById(id);
  const on = (id, action) => byId(id).addEventListener('click', action);
  byId('about').textContent = `${ranks.length} rank${ranks.length === 1 ? '' : 's'}, ` +
    `${steps.length} steps, ${ranks.reduce((sum, rank) => sum + rank.count, 0)} events`;
  byId('step').max = steps.length;

  const shown = ['forward', 'backward', 'optimizer', 'load', 'progress', 'wait', 'idle',
    'collective', 'step'];
  if (ranks.some((rank) => rank.kind.includes(kinds.indexOf('kernel')))) shown.push('kernel');
  const meaning = {
    progress: 'moves bytes', idle: 'waits for a rank', collective: 'collective in flight',
    step: 'step of its plan', load: 'loads a batch', kernel: 'the GPU runs a kernel',
  };
  byId('legend').replaceChildren(...[...shown, 'mark'].map((kind) => {
    const item = document.createElement('li'), key = document.createElement('span');
    key.className = 'key';
    key.style.background = `var(--${kind})`;
    item.append(key, ' ' + (kind === 'mark' ? 'ready, launched, verdict' : meaning[kind] || kind));
    return item;
  }));

  const by = (shift) => stepView.choose(stepView.chosen() + shift);
  on('previous', () => by(-1));
  on('next', () => by(1));
  on('median', () => stepView.choose(stepView.median));
  on('slowest', () => stepView.choose(stepView.slowest));
  on('in', () => timeline.zoom(0.7));
  on('out', () => timeline.zoom(1 / 0.7));
  on('all', () => timeline.show(...timeline.whole));
  byId('step').addEventListener('change', (e) => stepView.choose(Number(e.target.value) - 1));
  document.addEventListener('keydown', (e) => {
    if (/INPUT|SELECT/.test(e.target.tagName)) return;
    if (e.key === 'n') by(1);
    if (e.key === 'p') by(-1);
  });
  stepView.choose(stepView.median);

  // ---- what test/cli/report/page_test.cpp reads ----

  // Of all slices, how many are in view and wider than a pixel: those must have been drawn.
  function wideInView() {
    const [from, to] = timeline.range(), pixel = timeline.pixel();
    let count = 0;
    for (const rank of ranks)
      for (let i = 0; i < rank.count; ++i)
        if (rank.length[i] >= pixel && rank.length[i] > 0 && rank.begin[i] <= to
          && rank.begin[i] + rank.length[i] >= from) ++count;
    return count;
  }

  // What the charts show, by their keys; and whether a curve was drawn at all.
  function trainingTest() {
    const chart = curves.charts[0], result = { hidden: byId('training').hidden, shown: {} };
    result.table = [...byId('values').rows].map((row) =>
      [...row.cells].map((cell) => cell.textContent));
    if (!chart) return result;
    const press = (key) => chart.canvas.dispatchEvent(new KeyboardEvent('keydown', { key }));
    for (const [key, times] of [['Home', 1], ['ArrowRight', 4], ['ArrowLeft', 1], ['End', 1]]) {
      for (let k = 0; k < times; ++k) press(key);
      result.shown[key] = byId('curve-hover').textContent;
    }
    press('Enter');
    result.chosen = stepView.chosen();
    const { canvas, lines } = chart, context = canvas.getContext('2d');
    const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
    const color = style(lines[0].color).match(/[0-9a-f]{2}/g).map((hex) => parseInt(hex, 16));
    result.columns = 0;  // of pixels in which the curve's color is
    for (let x = 0; x < canvas.width; ++x)
      for (let y = 0; y < canvas.height; ++y)
        if (color.every((part, k) => Math.abs(data[4 * (y * canvas.width + x) + k] - part) < 60)
          && data[4 * (y * canvas.width + x) + 3] > 0) { ++result.columns; break; }
    result.width = canvas.width;
    return result;
  }

  function selftest() {
    const result = { step: stepView.chosen(), figures: report.figures };
    const text = (id) => byId(id).textContent;
    const press = (id) => byId(id).click();
    press('next');
    result.next = text('step-number');
    press('previous');
    press('slowest');
    result.slowest = text('step-number');
    press('median');
    result.median = text('step-number');
    result.stepText = text('step-text');
    result.buckets = [...byId('buckets').rows].slice(1).map((row) =>
      [row.cells[0], row.cells[row.cells.length - 1]].map((cell) => cell.textContent));
    const events = ringView.events();
    result.ringEvents = events.length;
    result.ringBegin = text('ring-text');
    ringView.go(events.length);
    const n = ranks.length, states = ringView.states();
    result.ringComplete = states === null ? null
      : states.every((rank) => rank[rank.length - 1].every((bits) => bits === 2 ** n - 1));
    press('in');
    result.zoomed = timeline.range();
    press('all');
    result.all = timeline.range();
    const frames = [], views = [];
    const [begin, end] = timeline.whole;
    for (let k = 0; k < 200; ++k) {  // into the middle and out again
      const share = 0.5 ** (Math.min(k, 200 - k) / 8), center = begin + 0.37 * (end - begin);
      timeline.show(center - share * (end - begin) / 2, center + share * (end - begin) / 2);
      const start = performance.now();
      timeline.draw();
      frames.push(performance.now() - start);
      if (k % 40 === 0) views.push([timeline.wide(), wideInView()]);
    }
    result.views = views;
    result.training = trainingTest();
    frames.sort((a, b) => a - b);
    result.frame95 = frames[Math.floor(0.95 * frames.length)];
    const place = document.createElement('pre');
    place.id = 'selftest';
    place.textContent = JSON.stringify(result);
    document.body.append(place);
  }
  if (location.hash === '#selftest') selftest();
})();
