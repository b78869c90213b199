// What the program has put into the page, unpacked. Times are microseconds since the trace began.
//
// An event of a rank is five numbers: track, kind, name, begin, duration. Begins are differences
// to the event before, in nanoseconds. `more` has further numbers of some events, by their place.
'use strict';

const report = JSON.parse(document.getElementById('data').textContent);
const kinds = report.kinds;

// How many events of its track contain an event.
function depths(rank) {
  const open = [];
  let track = -1;
  rank.depth = new Uint8Array(rank.count);
  for (let i = 0; i < rank.count; ++i) {
    if (rank.track[i] !== track) { open.length = 0; track = rank.track[i]; }
    while (open.length && open[open.length - 1] <= rank.begin[i] + 0.002) open.pop();
    rank.depth[i] = open.length;
    if (rank.length[i] > 0) open.push(rank.begin[i] + rank.length[i]);
  }
}

function unpack(packed) {
  const count = packed.events.length / 5;
  const rank = {
    count, more: packed.more, tracks: [],
    track: new Uint16Array(count), kind: new Uint8Array(count), name: new Uint32Array(count),
    begin: new Float64Array(count), length: new Float64Array(count),
  };
  let time = 0;
  for (let i = 0; i < count; ++i) {
    const at = 5 * i;
    rank.track[i] = packed.events[at];
    rank.kind[i] = packed.events[at + 1];
    rank.name[i] = packed.events[at + 2];
    time += packed.events[at + 3];
    rank.begin[i] = time / 1000;
    rank.length[i] = packed.events[at + 4] / 1000;
    const last = rank.tracks[rank.tracks.length - 1];
    if (!last || last.number !== rank.track[i])
      rank.tracks.push({ number: rank.track[i], first: i, end: i + 1, longest: 0 });
    const here = rank.tracks[rank.tracks.length - 1];
    here.end = i + 1;
    here.longest = Math.max(here.longest, rank.length[i]);
  }
  depths(rank);
  return rank;
}

// Per track the places of its events, by depth, and its instants. All lists are by begin.
//
// A depth has several lists: all events, and those that last at least 1/4 us, 1 us, 4 us, ... So
// a view in which a pixel is P us draws what is wider from a list of few others.
const deepest = 2;  // what lies deeper is drawn there, too
const leastOf = (k) => (k === 0 ? 0 : 4 ** (k - 2));
function byLength(rank, list) {
  const lists = [Uint32Array.from(list)];
  while (lists[lists.length - 1].length > 256) {
    const least = leastOf(lists.length);
    lists.push(lists[lists.length - 1].filter((i) => rank.length[i] >= least));
  }
  return lists;
}
function sortByDepth(rank) {
  for (const track of rank.tracks) {
    const levels = [[], [], []], instants = [], longest = [0, 0, 0];
    for (let i = track.first; i < track.end; ++i) {
      const depth = Math.min(deepest, rank.depth[i]);
      if (rank.length[i] === 0) { instants.push(i); continue; }
      levels[depth].push(i);
      longest[depth] = Math.max(longest[depth], rank.length[i]);
    }
    track.instants = Uint32Array.from(instants);
    track.levels = levels.filter((list) => list.length).map((list) => byLength(rank, list));
    track.longestOf = longest;
  }
  return rank;
}

const ranks = report.ranks.map(unpack).map(sortByDepth);
const steps = report.steps;

// The first place in `list`, from `low` on, of an event that begins at `time` or after it.
function firstIn(rank, list, time, low = 0) {
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rank.begin[list[middle]] < time) low = middle + 1; else high = middle;
  }
  return low;
}

// The first event of a track that may reach beyond `time`.
function firstAfter(rank, track, time) {
  let low = track.first, high = track.end;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rank.begin[middle] < time - track.longest) low = middle + 1; else high = middle;
  }
  return low;
}

const kindOf = (rank, i) => kinds[rank.kind[i]];
const nameOf = (rank, i) => report.names[rank.name[i]];
const us = (x) => (x === null ? '-' : x.toFixed(1));

// ---- what the parts of the page share ----

function fill(table, head, rows) {
  const line = (cells, tag) => {
    const row = document.createElement('tr');
    for (const text of cells) {
      const cell = document.createElement(tag);
      cell.textContent = text;
      row.append(cell);
    }
    return row;
  };
  table.replaceChildren(line(head, 'th'), ...rows.map((cells) => line(cells, 'td')));
}

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue('--' + name);

// A canvas as sharp as the screen. Returns its context, with a unit of one CSS pixel.
function prepare(canvas, height) {
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = height + 'px';
  }
  const context = canvas.getContext('2d');
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = '12px system-ui, sans-serif';
  return context;
}
