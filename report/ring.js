// One bucket's collective, from the recorded steps of its plan. A step ends when its messages have
// arrived. Which contributions a part then holds follows from the plan: in step k a rank sends what
// it had after step k - 1.
'use strict';

const ringView = (() => {
  const byId = (id) => document.getElementById(id);
  const canvas = byId('ring');
  let inPlace = false;  // nothing travels: ranks add in shared memory
  let step = null, events = [], cuts = [], states = null, at = 0, timer = null;
  let count = 0, how = '';  // elements; "all-reduce by ring"

  // The steps of the collective of this name that ended within the rank's step.
  function stepsOf(r, name) {
    const rank = ranks[r], found = [];
    for (const track of rank.tracks) {
      if (track.number === 1) continue;
      for (let i = firstAfter(rank, track, step.ranks[r].begin); i < track.end; ++i) {
        if (rank.begin[i] > step.ranks[r].end) break;
        const end = rank.begin[i] + rank.length[i];
        if (kindOf(rank, i) !== 'collective' || nameOf(rank, i) !== name
          || end <= step.ranks[r].begin || end > step.ranks[r].end + 0.002) continue;
        const [, operation, algorithm, elements] = rank.more[i];
        count = elements;
        how = `${operation} by ${algorithm}`;
        for (let k = i + 1; k < track.end && kindOf(rank, k) === 'step'; ++k) {
          const [number, to, s0, s1, from, r0, r1, action, into] = rank.more[k];
          found.push({ r, number, to, s0, s1, from, r0, r1, action, into,
            time: rank.begin[k] + rank.length[k] });
        }
        return found;
      }
    }
    return found;
  }

  // states[r][k]: after k steps, per part a set of bits, the ranks whose contributions it holds.
  // Null if steps add in ways that the trace does not tell.
  function contributions(perRank) {
    const most = Math.max(0, ...perRank.map((list) => list.length));
    if (perRank.some((list) => list.length !== most
      || list.some((e) => e.action !== 'none' || e.into === 'slot'))) return null;
    const all = perRank.map((_, r) => [cuts.slice(1).map(() => 1 << r)]);
    for (let k = 0; k < most; ++k)
      for (let r = 0; r < perRank.length; ++r) {
        const e = perRank[r][k], parts = all[r][k].slice();
        if (e.from >= 0)
          cuts.slice(1).forEach((end, part) => {
            if (cuts[part] < e.r0 || end > e.r1) return;
            const theirs = all[e.from][k][part];
            parts[part] = e.into === 'sum' ? parts[part] | theirs : theirs;
          });
        all[r].push(parts);
      }
    return all;
  }

  function load() {
    count = 0;
    const perRank = step.ranks.map((_, r) => stepsOf(r, byId('bucket').value));
    events = perRank.flat().sort((a, b) => a.time - b.time);
    const places = new Set([0, count]);
    for (const e of events) [e.s0, e.s1, e.r0, e.r1].forEach((p) => places.add(p));
    cuts = [...places].sort((a, b) => a - b);
    states = contributions(perRank);
    inPlace = events.length > 0 && events.every((e) => e.s1 === e.s0 && e.r1 === e.r0);
    canvas.hidden = inPlace;
    byId('at').max = events.length;
    go(0);
  }

  function text() {
    if (!events.length) return 'This bucket took no steps: there is one rank.';
    if (inPlace) return `${how}: the ranks add in memory that all of them address. No part of ` +
      'the bucket travels, only headers do. In a trace of train --ranks 3 --comm ring the parts ' +
      'move.';
    if (at === 0) {
      const each = events.filter((e) => e.r === events[0].r).length;
      return `${how}: ${count} elements; each of the ${step.ranks.length} ranks takes ${each} ` +
        'steps. Before the first: every rank has its own contribution.';
    }
    const e = events[at - 1];
    let said = `${us(e.time - events[0].time)} us: rank ${e.r} ends step ${e.number}.`;
    if (e.to >= 0) said += ` It has sent ${e.s1 - e.s0} elements to rank ${e.to}`;
    if (e.from >= 0)
      said += `${e.to >= 0 ? ' and' : ' It has'} received ${e.r1 - e.r0} from rank ${e.from}` +
        (e.into === 'sum' ? ', which it added' : '');
    if (e.to >= 0 || e.from >= 0) said += '.';
    if (e.action !== 'none') said += ` Then: ${e.action}${e.action.includes('regions')
      ? ', it adds its part from all ranks\' memory, directly' : ''}.`;
    return said;
  }

  function draw() {
    const n = step.ranks.length, row = 30, left = 60, height = n * row + 10;
    const context = prepare(canvas, height), width = canvas.clientWidth - left - 8;
    const done = step.ranks.map(() => 0), last = at > 0 ? events[at - 1] : null;
    events.slice(0, at).forEach((e) => { ++done[e.r]; });
    const x = (element) => left + (count ? element / count : 0) * width;
    for (let r = 0; r < n; ++r) {
      const y = 6 + r * row;
      context.fillStyle = style('ink');
      context.fillText(`rank ${r}`, 6, y + 15);
      cuts.slice(1).forEach((end, part) => {
        const px = x(cuts[part]), w = x(end) - px;
        const bits = states ? states[r][done[r]][part] : 0;
        const who = step.ranks.map((_, k) => k).filter((k) => bits >> k & 1);
        context.globalAlpha = states ? 0.2 + 0.8 * who.length / n : 0.3;
        context.fillStyle = style(who.length === n ? 'collective' : 'backward');
        context.fillRect(px, y, Math.max(1, w - 1), row - 10);
        context.globalAlpha = 1;
        context.fillStyle = style('ink');
        if (states && w > 14 + 12 * who.length) context.fillText(who.join('+'), px + 4, y + 14);
      });
      if (last && last.r === r && last.r1 > last.r0) {
        context.strokeStyle = style('mark');
        context.lineWidth = 2;
        context.strokeRect(x(last.r0), y, x(last.r1) - x(last.r0), row - 10);
      }
    }
    byId('ring-text').textContent = text();
  }

  function go(where) {
    at = Math.max(0, Math.min(events.length, where));
    byId('at').value = at;
    draw();
  }
  function stop() {
    clearInterval(timer);
    timer = null;
    byId('play').textContent = 'play';
  }
  function play() {
    if (timer) return stop();
    if (at === events.length) go(0);
    byId('play').textContent = 'stop';
    timer = setInterval(() => (at < events.length ? go(at + 1) : stop()), 600);
  }

  function choose(next) {
    step = next;
    stop();
    const select = byId('bucket'), before = select.selectedIndex;
    select.replaceChildren(...step.ranks[0].buckets.map(([name]) => new Option(name, name)));
    select.selectedIndex = Math.max(0, Math.min(before, select.length - 1));
    load();
  }
  byId('bucket').addEventListener('change', load);
  byId('play').addEventListener('click', play);
  byId('back').addEventListener('click', () => go(at - 1));
  byId('forth').addEventListener('click', () => go(at + 1));
  byId('at').addEventListener('input', (e) => go(Number(e.target.value)));
  new ResizeObserver(() => step && draw()).observe(canvas);
  return { choose, go, events: () => events, states: () => states, cuts: () => cuts };
})();
