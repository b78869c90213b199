// The timelines of all ranks over each other: a row per track, a line per depth.
'use strict';

const timeline = (() => {
  const canvas = document.getElementById('timeline'), hover = document.getElementById('hover');
  const line = 14, gap = 8, left = 96, axis = 20;
  const whole = [Infinity, -Infinity];
  const rows = [];
  let height = axis;
  for (const [r, rank] of ranks.entries())
    for (const track of rank.tracks) {
      for (let i = track.first; i < track.end; ++i) {
        whole[0] = Math.min(whole[0], rank.begin[i]);
        whole[1] = Math.max(whole[1], rank.begin[i] + rank.length[i]);
      }
      if (track.number === 1 && r > 0) height += gap;
      rows.push({ r, rank, track, y: height, lines: track.levels.length });
      height += track.levels.length * line + gap;
    }
  let from = whole[0], to = whole[1], colors = null, drag = null, waiting = false;
  let wide = 0;  // slices of the last frame that are wider than a pixel

  const width = () => canvas.clientWidth - left;
  const x = (time) => left + (time - from) / (to - from) * width();
  const timeAt = (px) => from + (px - left) / width() * (to - from);

  function label(row) {
    const number = row.track.number;
    if (number >= 1000) return number === 1000 ? '  stream' : `  stream ${number - 999}`;
    return number === 1 ? `rank ${row.r}` : number === 2 ? '  collectives' : `  collectives ${number - 1}`;
  }

  function drawAxis(context) {
    const span = to - from, wanted = span / Math.max(2, width() / 90);
    const power = 10 ** Math.floor(Math.log10(wanted));
    const unit = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= wanted);
    const decimals = (size) => Math.max(0, -Math.floor(Math.log10(size) + 1e-9));
    context.fillStyle = colors.soft;
    context.strokeStyle = colors.line;
    for (let time = Math.ceil(from / unit) * unit; time <= to; time += unit) {
      const px = Math.round(x(time)) + 0.5;
      context.beginPath();
      context.moveTo(px, axis - 4);
      context.lineTo(px, height);
      context.stroke();
      const text = span >= 5000 ? (time / 1000).toFixed(decimals(unit / 1000)) + ' ms'
        : time.toFixed(decimals(unit)) + ' us';
      if (px + 3 + context.measureText(text).width <= left + width())
        context.fillText(text, px + 3, 12);
    }
  }

  // Whether black is easier to read on a color than white (WCAG 2.1, relative luminance).
  function isLight(color) {
    const part = (at) => (parseInt(color.trim().slice(at, at + 2), 16) / 255) ** 2.2;
    return 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5) > 0.18;
  }
  function drawSlice(context, row, depth, i) {
    const { rank } = row, y = row.y + depth * line;
    const begin = Math.max(left, x(rank.begin[i]));
    const shown = Math.max(1, Math.min(x(rank.begin[i] + rank.length[i]), left + width()) - begin);
    context.fillStyle = colors[kindOf(rank, i)];
    context.fillRect(begin, y, shown, line - 1);
    if (shown < 36) return;
    const letters = Math.floor((shown - 6) / 6.2), name = nameOf(rank, i);
    context.fillStyle = isLight(colors[kindOf(rank, i)]) ? '#111111' : '#ffffff';
    context.fillText(name.length > letters ? name.slice(0, letters - 1) + '…' : name, begin + 3,
      y + 11);
  }
  // Slices that are narrower than a pixel: the first of each pixel, the others are passed over. Then
  // those that are wider. So the time of a frame does not depend on how long the trace is.
  function drawLevel(context, row, depth) {
    const { rank, track } = row, lists = track.levels[depth], pixel = (to - from) / width();
    const all = lists[0];
    for (let k = firstIn(rank, all, from - pixel); k < all.length && rank.begin[all[k]] <= to;) {
      if (rank.length[all[k]] < pixel) drawSlice(context, row, depth, all[k]);
      k = firstIn(rank, all, rank.begin[all[k]] + pixel, k + 1);
    }
    let few = 0;
    while (few + 1 < lists.length && leastOf(few + 1) <= pixel) ++few;
    const list = lists[few];
    for (let k = firstIn(rank, list, from - track.longestOf[depth]);
      k < list.length && rank.begin[list[k]] <= to; ++k)
      if (rank.length[list[k]] >= pixel && rank.begin[list[k]] + rank.length[list[k]] >= from) {
        drawSlice(context, row, depth, list[k]);
        ++wide;
      }
  }
  function drawInstants(context, { rank, track, y, lines }) {
    const list = track.instants;
    context.fillStyle = colors.mark;
    for (let k = firstIn(rank, list, from); k < list.length && rank.begin[list[k]] <= to; ++k)
      context.fillRect(x(rank.begin[list[k]]), y - 4, 1.5, lines * line + 4);
  }
  function drawRow(context, row) {
    row.track.levels.forEach((_, depth) => drawLevel(context, row, depth));
    if (to - from < 20000) drawInstants(context, row);
    context.fillStyle = colors.ink;
    context.fillText(label(row), 6, row.y + 11);
  }

  function draw() {
    colors = colors || Object.fromEntries(
      [...kinds, 'ground', 'ink', 'soft', 'line', 'mark'].map((name) => [name, style(name)]));
    const context = prepare(canvas, height);
    wide = 0;
    drawAxis(context);
    rows.forEach((row) => drawRow(context, row));
  }
  function later() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  }

  function show(begin, end) {
    const least = 0.5, span = Math.max(least, Math.min(end - begin, whole[1] - whole[0]));
    from = Math.max(whole[0], Math.min(begin, whole[1] - span));
    to = from + span;
    later();
  }
  function zoom(factor, px) {
    const center = px === undefined ? (from + to) / 2 : timeAt(px);
    show(center - (center - from) * factor, center + (to - center) * factor);
  }
  const move = (share) => show(from + share * (to - from), to + share * (to - from));

  function at(px, py) {
    const row = rows.find((r) => py >= r.y - 4 && py < r.y + r.lines * line);
    if (!row || px < left) return null;
    const time = timeAt(px), near = 2 * (to - from) / width(), { rank, track } = row;
    const depth = Math.max(0, Math.floor((py - row.y) / line));
    let found = null;
    for (let i = firstAfter(rank, track, from); i < track.end && rank.begin[i] <= time + near; ++i)
      if (rank.length[i]
        ? rank.begin[i] <= time && rank.begin[i] + rank.length[i] >= time
          && Math.min(deepest, rank.depth[i]) <= depth
        : Math.abs(rank.begin[i] - time) < near) found = i;
    return found === null ? null : { row, i: found };
  }
  function describe({ row, i }) {
    const { rank } = row, more = rank.more[i], kind = kindOf(rank, i);
    let text = `rank ${row.r}, ${kind}: ${nameOf(rank, i)}, at ${us(rank.begin[i])} us`;
    if (rank.length[i]) text += `, ${rank.length[i].toFixed(2)} us`;
    if (more) text += ', ' + report.words[kind].map((word, k) => `${word} ${more[k]}`).join(', ');
    return text;
  }

  canvas.addEventListener('wheel', (e) => {
    e.preventDefault();
    zoom(e.deltaY > 0 ? 1.2 : 1 / 1.2, e.offsetX);
  }, { passive: false });
  canvas.addEventListener('pointerdown', (e) => {
    drag = { px: e.offsetX, from, to };
    canvas.setPointerCapture(e.pointerId);
  });
  canvas.addEventListener('pointerup', () => { drag = null; });
  canvas.addEventListener('pointermove', (e) => {
    if (drag) {
      const shift = (drag.px - e.offsetX) / width() * (drag.to - drag.from);
      show(drag.from + shift, drag.to + shift);
      return;
    }
    const event = at(e.offsetX, e.offsetY);
    if (event) hover.textContent = describe(event);
  });
  canvas.addEventListener('keydown', (e) => {
    const actions = {
      ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), '+': () => zoom(0.7),
      '=': () => zoom(0.7), '-': () => zoom(1 / 0.7), 0: () => show(...whole),
    };
    if (!actions[e.key]) return;
    e.preventDefault();
    actions[e.key]();
  });
  new ResizeObserver(later).observe(canvas);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    colors = null;
    later();
  });
  return { draw, show, zoom, whole, range: () => [from, to], pixel: () => (to - from) / width(),
    wide: () => wide };
})();
