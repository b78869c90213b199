// The values that the program has noted, such as losses: a chart for each name, over the steps.
// "train/loss" and "epoch/loss" are two curves of the chart "loss". One step is under the cursor in
// all charts.
'use strict';

const curves = (() => {
  const byId = (id) => document.getElementById(id);
  const height = 190, right = 10, top = 10, bottom = 22;
  const colorCount = 4;  // of page.css
  const sources = [];    // "train", "epoch": each has its color in all charts
  const charts = [];
  let cursor = null;

  const number = (x) => (x === null ? 'not finite' : String(Number(x.toPrecision(5))));

  for (const { name, steps: at, numbers, times } of report.values) {
    const cut = name.lastIndexOf('/'), source = name.slice(0, Math.max(0, cut));
    const title = name.slice(cut + 1);
    if (!sources.includes(source)) sources.push(source);
    let chart = charts.find((c) => c.title === title);
    if (!chart) charts.push(chart = { title, lines: [] });
    const color = `curve-${sources.indexOf(source) % colorCount}`;
    chart.lines.push({ name, source, color, at, numbers, times });
  }

  // The place of the last point at a step or before it; -1 if there is none.
  function placeOf(line, step) {
    let low = 0, high = line.at.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (line.at[middle] <= step) low = middle + 1; else high = middle;
    }
    return low - 1;
  }
  const hasNumber = (line, k) => line.numbers[k] !== null;

  // ---- axes ----

  const isLogarithmic = (chart) => byId('log').checked && chart.lowest > 0;
  for (const chart of charts) {
    const all = chart.lines.flatMap((line) => line.numbers.filter((x) => x !== null));
    chart.lowest = all.reduce((a, b) => Math.min(a, b), Infinity);
    chart.highest = all.reduce((a, b) => Math.max(a, b), -Infinity);
  }
  // All charts have the same steps over each other.
  const lines = charts.flatMap((chart) => chart.lines);
  const first = lines.reduce((a, line) => Math.min(a, line.at[0]), Infinity);
  const last = lines.reduce((a, line) => Math.max(a, line.at[line.at.length - 1]), -Infinity);

  // 1, 2 or 5 times a power of ten, at least `wanted`.
  function unitFor(wanted) {
    const power = 10 ** Math.floor(Math.log10(wanted));
    return [1, 2, 5, 10].map((k) => k * power).find((unit) => unit >= wanted * 0.999);
  }
  // A number near 2^53 has no successor: what is counted is the marks, not the units up to them.
  function ticks(low, high, most) {
    const unit = unitFor((high - low) / most), first = Math.ceil(low / unit - 1e-6), found = [];
    for (let k = 0; k <= most + 1 && (first + k) * unit <= high + 1e-6 * unit; ++k)
      found.push(Number(((first + k) * unit).toPrecision(12)));
    return found;
  }
  // Numbers that differ by little more than rounding: an axis has no marks for them.
  const isConstant = (low, high) => high - low <= 1e-10 * Math.max(Math.abs(low), Math.abs(high));
  // From the lowest number to the highest, with some room; a constant lies in the middle.
  function scaleY(chart) {
    if (chart.lowest > chart.highest) return { low: 0, high: 1, marks: [], f: (x) => x };
    const f = isLogarithmic(chart) ? Math.log10 : (x) => x;
    let low = f(chart.lowest), high = f(chart.highest);
    const room = isConstant(low, high) ? Math.abs(low) / 2 || 1 : 0.06 * (high - low);
    low -= room;
    high += room;
    if (f !== Math.log10) return { low, high, marks: ticks(low, high, 5), f };
    const marks = [];
    for (let power = Math.floor(low); power <= high; ++power)
      for (const k of high - low < 2.5 ? [1, 2, 5] : [1]) {
        const mark = Number((k * 10 ** power).toPrecision(1));
        if (f(mark) >= low && f(mark) <= high) marks.push(mark);
      }
    const few = marks.length < 2;
    return { low, high, f, marks: few ? ticks(10 ** low, 10 ** high, 5) : marks };
  }
  function layOut(chart, context) {
    const y = scaleY(chart), labels = y.marks.map(number);
    const left = 12 + Math.max(10, ...labels.map((text) => context.measureText(text).width));
    const width = Math.max(1, chart.canvas.clientWidth - left - right);
    const span = Math.max(1, last - first), tall = height - top - bottom;
    chart.x = (step) => left + (last === first ? 0.5 : (step - first) / span) * width;
    chart.y = (value) => top + (y.high - y.f(value)) / (y.high - y.low) * tall;
    chart.stepAt = (px) => first + (px - left) / width * span;
    return { left, width, marks: y.marks, labels };
  }
  function drawAxes(chart, context) {
    const { left, width, marks, labels } = layOut(chart, context), base = height - bottom;
    context.fillStyle = style('soft');
    context.strokeStyle = style('line');
    context.lineWidth = 1;
    const rule = (x0, y0, x1, y1) => {
      context.beginPath();
      context.moveTo(x0, y0);
      context.lineTo(x1, y1);
      context.stroke();
    };
    context.textAlign = 'right';
    marks.forEach((mark, k) => {
      const y = Math.round(chart.y(mark)) + 0.5;
      rule(left, y, left + width, y);
      context.fillText(labels[k], left - 5, y + 4);
    });
    const words = `step ${last}`;  // the last mark says what the axis counts
    const free = left + width - context.measureText(words).width - 10;
    context.fillText(words, left + width, height - 6);
    context.textAlign = 'center';
    for (const step of ticks(first, last, Math.max(2, width / 90))) {
      const x = Math.round(chart.x(step)) + 0.5;
      rule(x, base, x, base + 4);
      if (Number.isInteger(step) && x + context.measureText(String(step)).width / 2 < free)
        context.fillText(String(step), x, height - 6);
    }
    context.textAlign = 'left';
    rule(left, base + 0.5, left + width, base + 0.5);
  }

  // ---- curves ----

  // Of the points in one column of pixels, the first, the lowest, the highest and the last.
  function pointsOf(chart, line) {
    const all = line.at.map((step, k) =>
      (hasNumber(line, k) ? [chart.x(step), chart.y(line.numbers[k])] : null));
    if (all.length < 4 * chart.canvas.clientWidth) return all;
    const columns = new Map();
    for (const point of all) {
      if (!point) continue;
      const column = Math.floor(point[0]), here = columns.get(column);
      if (!here) columns.set(column, [point, point, point, point]);
      else {
        if (point[1] > here[1][1]) here[1] = point;
        if (point[1] < here[2][1]) here[2] = point;
        here[3] = point;
      }
    }
    return [...columns.values()].flat();
  }
  function drawLine(chart, line, context) {
    const points = pointsOf(chart, line);
    context.strokeStyle = context.fillStyle = style(line.color);
    context.lineWidth = 1.6;
    context.lineJoin = 'round';
    context.beginPath();
    points.forEach((point, k) => {
      if (!point) return;  // a gap
      if (k > 0 && points[k - 1]) context.lineTo(...point); else context.moveTo(...point);
    });
    context.stroke();
    if (points.length <= chart.canvas.clientWidth / 12)
      points.forEach((point) => point && dot(context, point, 2.4));
  }
  function dot(context, [x, y], radius) {
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.fill();
  }
  function drawCursor(chart, context) {
    if (cursor === null) return;
    const x = Math.round(chart.x(cursor)) + 0.5;
    context.fillStyle = style('soft');
    context.fillRect(x - 0.5, top, 1, height - top - bottom);
    for (const line of chart.lines) {
      const k = placeOf(line, cursor);
      if (k < 0 || !hasNumber(line, k)) continue;
      context.fillStyle = style(line.color);
      dot(context, [chart.x(line.at[k]), chart.y(line.numbers[k])], 4);
    }
  }
  function draw(chart) {
    const context = prepare(chart.canvas, height);
    drawAxes(chart, context);
    chart.lines.forEach((line) => drawLine(chart, line, context));
    drawCursor(chart, context);
  }
  const drawAll = () => charts.forEach(draw);

  // ---- the cursor ----

  const begun = (chart) => chart.lines.filter((line) => line.at[0] <= cursor);
  function describe(chart) {
    const said = begun(chart).map((line) => {
      const k = placeOf(line, cursor), old = line.at[k] === cursor ? '' : ` (step ${line.at[k]})`;
      return `${line.name} ${number(line.numbers[k])}${old}`;
    });
    return `Step ${cursor}, at ${(timeOf(chart) / 1e6).toFixed(3)} s: ${said.join(', ')}. ` +
      'Click or Enter: this moment in the timeline.';
  }
  // When the newest value under the cursor was noted.
  function timeOf(chart) {
    return Math.max(...begun(chart).map((line) => line.times[placeOf(line, cursor)]));
  }
  // To the step nearest to `step` that has a value in this chart.
  function point(chart, step) {
    const near = chart.lines.flatMap((line) => {
      const k = placeOf(line, step);
      return line.at.slice(Math.max(0, k), k + 2);
    });
    cursor = near.reduce((a, b) => (Math.abs(b - step) < Math.abs(a - step) ? b : a));
    byId('curve-hover').textContent = describe(chart);
    drawAll();
  }
  function move(chart, shift) {
    const from = cursor === null ? first : cursor;
    const beyond = chart.lines.flatMap((line) => line.at)
      .filter((step) => (shift > 0 ? step > from : step < from));
    if (cursor === null || !beyond.length) return point(chart, from);
    point(chart, beyond.reduce((a, b) => (shift > 0 ? Math.min(a, b) : Math.max(a, b))));
  }
  function showInTimeline(chart) {
    if (cursor === null) return;
    const time = timeOf(chart), after = steps.findIndex((step) => step.ranks[0].end >= time);
    stepView.choose(after < 0 ? steps.length - 1 : after);
    byId('timeline').scrollIntoView({ block: 'nearest' });
  }

  function listen(chart) {
    const { canvas } = chart;
    canvas.addEventListener('pointermove', (e) => point(chart, chart.stepAt(e.offsetX)));
    canvas.addEventListener('click', (e) => {
      point(chart, chart.stepAt(e.offsetX));
      showInTimeline(chart);
    });
    canvas.addEventListener('keydown', (e) => {
      const actions = {
        ArrowLeft: () => move(chart, -1), ArrowRight: () => move(chart, 1),
        Home: () => point(chart, first), End: () => point(chart, last),
        Enter: () => showInTimeline(chart),
      };
      if (!actions[e.key]) return;
      e.preventDefault();
      actions[e.key]();
    });
    new ResizeObserver(() => draw(chart)).observe(canvas);
  }

  // ---- the section ----

  function element(tag, text, className = '') {
    const made = document.createElement(tag);
    made.textContent = text;
    made.className = className;
    return made;
  }
  function build(chart) {
    const figure = document.createElement('figure'), caption = element('figcaption', '');
    caption.append(element('strong', chart.title.replaceAll('_', ' ')));
    for (const line of chart.lines) {
      const key = element('span', '', 'key');
      key.style.background = `var(--${line.color})`;
      if (line.source) caption.append(' ', key, ` ${line.source}`);
    }
    chart.canvas = document.createElement('canvas');
    chart.canvas.tabIndex = 0;
    chart.canvas.setAttribute('role', 'img');
    chart.canvas.setAttribute('aria-label', `${chart.title} over the steps. Arrow keys, Home and ` +
      'End move the cursor, Enter shows the moment in the timeline.');
    figure.append(caption, chart.canvas);
    byId('charts').append(figure);
    listen(chart);
  }
  function showTable() {
    fill(byId('values'), ['', 'values', 'first', 'last', 'lowest', 'highest'],
      charts.flatMap((chart) => chart.lines.map((line) => {
        const finite = line.numbers.filter((x) => x !== null);
        const least = finite.reduce((a, b) => Math.min(a, b), Infinity);
        const most = finite.reduce((a, b) => Math.max(a, b), -Infinity);
        return [line.name, String(line.at.length), number(line.numbers[0]),
          number(line.numbers[line.at.length - 1]), ...(finite.length
            ? [number(least), number(most)] : ['-', '-'])];
      })));
  }

  byId('training').hidden = charts.length === 0;
  charts.forEach(build);
  showTable();
  byId('log').addEventListener('change', drawAll);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawAll);
  return { charts };
})();
