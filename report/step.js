// One step in numbers, and all steps as a curve.
'use strict';

const stepView = (() => {
  const byId = (id) => document.getElementById(id);
  const chart = byId('chart');
  let chosen = 0;

  const hiddenShare = (f) => `${(f.in_flight ? 100 * f.hidden / f.in_flight : 0).toFixed(0)} %`;
  const lengthOf = (step) => step.ranks[0].end - step.ranks[0].begin;
  const order = steps.map((_, k) => k).sort((a, b) => lengthOf(steps[a]) - lengthOf(steps[b]));
  const median = order[order.length >> 1], slowest = order[order.length - 1];

  // The parameters in each bucket that a rank launched in a step, as their gradients became ready.
  // Events have the bucket's number: what was ready since the last launch of this number is in it.
  function gradients(step, r) {
    const rank = ranks[r], ready = {}, launched = [];
    for (const i of rank.tracks[0].instants) {
      if (rank.begin[i] < step.ranks[r].begin || rank.begin[i] > step.ranks[r].end) continue;
      const [bucket] = rank.more[i] || [];
      if (kindOf(rank, i) === 'ready') (ready[bucket] ||= []).push(nameOf(rank, i));
      if (kindOf(rank, i) !== 'launched') continue;
      launched.push(ready[bucket] || []);
      delete ready[bucket];
    }
    return launched;
  }
  function showBuckets(step) {
    const rows = [], most = 8;
    step.ranks.forEach((rank, r) => {
      const names = gradients(step, r);
      rank.buckets.forEach((bucket, b) => {
        const [name, bytes, ready, launched, begun, arrived] = bucket, all = names[b] || [];
        rows.push([`rank ${r}, ${name}`, String(bytes), us(ready), us(launched), us(begun),
          us(arrived), all.slice(0, most).join(', ')
            + (all.length > most ? ` and ${all.length - most} more` : '')]);
      });
    });
    fill(byId('buckets'), ['us after backward began', 'bytes', 'ready', 'launched', 'begun',
      'arrived', 'gradients of'], rows);
  }
  function showWaits(step) {
    const head = ['us', ...step.ranks.map((_, r) => `for rank ${r}`)];
    fill(byId('waits'), head, step.ranks.map((rank, r) => [`rank ${r} waits`,
      ...rank.waits.map((time, other) => (other === r ? '' : us(time)))]));
  }
  function showText(step) {
    byId('step-number').textContent = `${chosen + 1} of ${steps.length}: ${step.verdict}`;
    fill(byId('step-figures'), ['us', 'step', 'exposed', 'in flight', 'hidden',
      'hidden / in flight'],
      step.ranks.map((rank, r) => [`rank ${r}`, us(rank.end - rank.begin), us(rank.exposed),
        us(rank.in_flight), us(rank.hidden), hiddenShare(rank)]));
    const one = Math.max(...step.ranks.map((rank) => rank.buckets.length)) === 1;
    byId('step-text').textContent = (one ? 'There is one bucket. It is launched when backward ' +
      'ends, so nothing can hide it: train --bucket-cap-mb 0.03 makes several. ' : '') + 'The ideal: the same buckets, ready at the same times and ' +
      `moved by nobody's thread, would leave ${us(step.ideal)} us exposed.`;
  }

  function choose(k, zoom = true) {
    chosen = Math.max(0, Math.min(steps.length - 1, k));
    const step = steps[chosen];
    byId('step').value = chosen + 1;
    showText(step);
    showBuckets(step);
    showWaits(step);
    drawChart();
    ringView.choose(step);
    if (!zoom) return;
    const begin = Math.min(...step.ranks.map((rank) => rank.begin));
    const end = Math.max(...step.ranks.map((rank) => rank.end));
    timeline.show(begin, end);
  }

  // With more steps than pixels: the largest of each pixel.
  function curve(context, value, top, width, height, color) {
    context.fillStyle = color;
    const bar = Math.max(1, width / steps.length - (steps.length < width / 3 ? 1 : 0));
    const largest = new Map();
    steps.forEach((step, k) => {
      const px = Math.floor(k / steps.length * width);
      largest.set(px, Math.max(largest.get(px) || 0, value(step)));
    });
    for (const [px, v] of largest) {
      const y = Math.max(1, v / top * (height - 16));
      context.fillRect(px, height - y, bar, y);
    }
  }
  // The slowest steps of all are cut off, so that the others can be seen.
  function drawChart() {
    const height = 110, context = prepare(chart, height), width = chart.clientWidth;
    const high = order[Math.floor(0.99 * (order.length - 1))];
    const top = Math.max(1e-9, 1.1 * lengthOf(steps[high]));
    curve(context, (s) => Math.min(top, lengthOf(s)), top, width, height, style('backward'));
    curve(context, (s) => Math.min(top, s.ranks[0].exposed), top, width, height, style('idle'));
    context.fillStyle = style('mark');
    context.fillRect((chosen + 0.5) / steps.length * width - 1, 0, 2, height);
    context.fillStyle = style('soft');
    context.fillText(`${us(top)} us`, 4, 12);
  }
  chart.addEventListener('click', (e) =>
    choose(Math.floor(e.offsetX / chart.clientWidth * steps.length)));
  new ResizeObserver(drawChart).observe(chart);

  function showRanks() {
    const per = (x) => us(x / steps.length);
    fill(byId('ranks'),
      ['us per step', 'step', 'load', 'forward', 'backward', 'optimizer', 'exposed', 'other',
        'in flight', 'hidden', 'hidden / in flight'],
      report.figures.map((f, r) => [`rank ${r}`, per(f.time), per(f.load), per(f.forward),
        per(f.backward), per(f.optimizer), per(f.exposed),
        per(f.time - f.load - f.forward - f.backward - f.optimizer - f.exposed), per(f.in_flight), per(f.hidden),
        hiddenShare(f)]));
    byId('words').textContent = 'In flight: a collective has begun, and the thread has ' +
      'not yet seen its end. Exposed: the thread calls, moves bytes or waits. ' +
      'Hidden: in flight, while the thread does something else. That alone is no gain: compare ' +
      '"exposed" with a run of a single bucket, which travels after backward (train without ' +
      '--bucket-cap-mb). Other: the program\'s own code. In the code: Reducer::gradient_ready, ' +
      'in dist/ddp/reducer.cpp, launches buckets and moves bytes while backward runs. The first ' +
      'step of the run is left out: buckets are laid out anew after it. So are steps that not ' +
      'all ranks have.';
  }
  showRanks();
  return { choose, median, slowest, chosen: () => chosen };
})();
