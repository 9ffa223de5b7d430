'use strict';
// Everything that comes from the worker gets into the page as text, never as markup.

const every = 2000;    // ms between two requests
const patience = 5000; // ms for an answer

const byID = (id) => document.getElementById(id);

function make(tag, className, text) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

// setText changes only a text that differs, so that no screen reader repeats it.
function setText(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

const number = new Intl.NumberFormat();
const clock = new Intl.DateTimeFormat('sv-SE', { dateStyle: 'short', timeStyle: 'medium' }); // 2006-01-02 15:04:05, in every locale

function span(seconds) {
  seconds = Math.max(0, Math.floor(seconds));
  const units = [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]];
  const i = units.findIndex(([, size]) => seconds >= size);
  if (i < 0) return '0 s';
  const first = Math.floor(seconds / units[i][1]);
  const rest = seconds - first * units[i][1];
  const next = units[i + 1];
  const second = next && first < 10 ? Math.floor(rest / next[1]) : 0;
  return `${first} ${units[i][0]}` + (second ? ` ${second} ${next[0]}` : '');
}

const isTime = (text) => Boolean(text) && !text.startsWith('0001-');
const since = (now, text) => isTime(text) ? span((Date.parse(now) - Date.parse(text)) / 1000) : '';
const when = (text) => isTime(text) ? clock.format(new Date(text)) : '';

// A card is a number, with a line of the last minute if there is one.
function card(cards, key, name) {
  let c = cards.querySelector(`[data-key="${key}"]`);
  if (c) return c;
  c = make('div', `card ${key}`);
  c.dataset.key = key;
  const value = make('dd');
  value.append(make('span', 'big'), make('span', 'unit'));
  c.append(make('dt', '', name), value, make('dd', 'small'));
  cards.append(c);
  return c;
}

function line(c, rates) {
  const ns = 'http://www.w3.org/2000/svg';
  let svg = c.querySelector('svg');
  if (!svg) {
    svg = document.createElementNS(ns, 'svg');
    svg.setAttribute('viewBox', '0 0 59 30');
    svg.setAttribute('preserveAspectRatio', 'none');
    svg.setAttribute('aria-hidden', 'true');
    svg.append(document.createElementNS(ns, 'polyline'));
    c.append(svg);
  }
  const top = Math.max(1, ...rates);
  svg.firstChild.setAttribute('points',
    rates.map((r, i) => `${60 - rates.length + i},${(29 - 28 * r / top).toFixed(1)}`).join(' '));
}

const verdicts = {
  forwarded: 'Forwarded', dropped: 'Dropped (rolled back)', dead_lettered: 'Dead-lettered', set_aside: 'Set aside',
};

function showCards(r) {
  const cards = byID('cards');
  for (const v of r.verdicts) {
    const c = card(cards, v.verdict, verdicts[v.verdict] || v.verdict);
    const sum = v.rates.reduce((a, b) => a + b, 0);
    const rate = v.rates.length ? sum / v.rates.length : 0;
    setText(c.querySelector('.big'), rate >= 100 ? number.format(Math.round(rate)) : rate.toFixed(1));
    setText(c.querySelector('.unit'), ' /s');
    setText(c.querySelector('.small'), `${number.format(v.total)} in all`);
    line(c, v.rates);
  }
  const oldest = r.oldest.length ? `the oldest for ${since(r.now, r.oldest[0].since)}` : 'none of them';
  const due = r.due_since ? `${number.format(r.due)} carried are past their stage time, the first for ${since(r.now, r.due_since)}` : 'carried by their rows; none is past its stage time';
  const d = r.delayed || {};
  const delayed = (d.next ? `messages; the next one is due in ${since(d.next, r.now)}` : 'messages that wait for their time')
    + (d.overdue ? `; due and not yet staged, the first for ${Math.round(d.overdue)} s` : '') + (r.delayed ? `, as of ${when(d.at)}` : '');
  const tooLarge = r.waiting.too_large ? `; ${number.format(r.waiting.too_large)} are too large for the broker, see the log` : '';
  const unstageable = r.unstageable ? `; ${number.format(r.unstageable)} cannot be staged, see the log` : '';
  for (const [key, name, value, small] of [
    ['waiting', 'Waiting for a transaction', r.waiting.transaction, oldest],
    ['held', 'Held', r.held, `${number.format(r.settling)} lookups wait in the database${tooLarge}`],
    ['restaged', 'Staged again', r.restaged, due + unstageable],
    ...(d.waiting || d.overdue || cards.querySelector('[data-key="delayed"]') ? [['delayed', 'Delayed', d.waiting || 0, delayed]] : []),
    ['swept', 'Orphan rows swept', r.swept, 'of the ledger'],
  ]) {
    const c = card(cards, key, name);
    setText(c.querySelector('.big'), number.format(value));
    setText(c.querySelector('.small'), small);
  }
}

// A word of up to 20 characters is never broken, a longer one only after its
// punctuation, and one of more than 40 without any wherever it has to be.
const longWord = /\S{21,}/g;
const endlessWord = /[^\s._/:@=,-]{41}/;
const joint = /(?<=[._/:@=,])(?=[^._/:@=,])/;

function words(e, text) {
  let done = 0;
  for (const m of text.matchAll(longWord)) {
    e.append(text.slice(done, m.index));
    m[0].split(joint).forEach((part, i) => e.append(...(i ? [make('wbr'), part] : [part])));
    done = m.index + m[0].length;
  }
  e.append(text.slice(done));
  return e;
}

// table shows rows; columns are [heading, class, value of a row, more of it].
function table(id, heading, columns, rows, none) {
  const box = byID(id);
  box.classList.toggle('none', rows.length === 0);
  if (rows.length === 0) {
    if (box.dataset.none !== none) {
      box.replaceChildren(make('p', '', none));
      box.dataset.none = none;
    }
    return;
  }
  delete box.dataset.none;
  let t = box.querySelector('table');
  if (!t) {
    t = make('table');
    t.setAttribute('role', 'table'); // narrow screens override the table's layout
    t.setAttribute('aria-labelledby', heading);
    const head = make('tr');
    head.setAttribute('role', 'row');
    for (const [name, className] of columns) {
      const th = make('th', className === 'number' ? className : '', name);
      th.scope = 'col';
      th.setAttribute('role', 'columnheader');
      head.append(th);
    }
    const thead = make('thead');
    thead.setAttribute('role', 'rowgroup');
    thead.append(head);
    const tbody = make('tbody');
    tbody.setAttribute('role', 'rowgroup');
    t.append(thead, tbody);
    box.replaceChildren(t);
  }
  t.tBodies[0].replaceChildren(...rows.map((row) => {
    const tr = make('tr');
    tr.setAttribute('role', 'row');
    for (const [name, className, value, more = () => ''] of columns) {
      const text = value(row), rest = more(row);
      const td = make('td', className);
      const lines = make('div'); // one child, for the layout of narrow screens
      lines.append(words(make('div'), text || '–'));
      if (rest) lines.append(words(make('div', 'more'), rest));
      td.append(lines);
      td.classList.toggle('empty', text === '');
      td.classList.toggle('endless', endlessWord.test(`${text} ${rest}`));
      td.dataset.label = name;
      td.setAttribute('role', 'cell');
      tr.append(td);
    }
    return tr;
  }));
}

const phases = {
  starting: 'database and broker have not both answered yet',
  failing: 'nothing is judged',
  stopping: 'forwarding the judged messages',
};

function show(r) {
  setText(byID('queue'), r.queue);
  document.title = `${r.state === 'running' ? '' : `${r.state}: `}Verifier ${r.queue}`;
  const troubled = r.state === 'running' && (r.targets_unavailable > 0 || r.foreign || r.blocked || r.waiting.evidence_since);
  byID('state').className = `state ${troubled ? 'troubled' : r.state}`;
  setText(byID('phase'), r.state);
  setText(byID('phase-text'), r.state === 'running'
    ? `since ${when(r.session)}${r.sessions > 1 ? `, session ${number.format(r.sessions)}` : ''}`
      + (r.targets_unavailable === 1 ? '; 1 target is unavailable' : r.targets_unavailable ? `; ${number.format(r.targets_unavailable)} targets are unavailable` : '') : phases[r.state] || '');
  const trouble = r.error ? `${r.session ? 'The database' : 'The last session'}: ${r.error}` : r.blocked ? `Nothing can be published: ${r.blocked}` : r.foreign ? r.foreign
    : r.waiting.evidence_since ? `Messages that look rolled back are waiting for evidence, since ${when(r.waiting.evidence_since)}: in this session no message has been found that a sender committed on this database server. Is the server a copy, or an old primary?` : '';
  byID('error').hidden = !trouble;
  setText(byID('error'), trouble);

  showCards(r);
  byID('cards').querySelector('.dead_lettered').classList.toggle('alarm', r.dead.length > 0);
  byID('cards').querySelector('.waiting').classList.toggle('alarm',
    r.oldest.length > 0 && Date.parse(r.now) - Date.parse(r.oldest[0].since) > 60000);

  setText(byID('waiting-n'), number.format(r.waiting.transaction));
  const t = r.transactions;
  table('transactions', 'transactions-h', [
    ['Open for', 'time', (h) => since(r.now, h.since)],
    ['Session', '', (h) => h.session],
    ['Program', '', (h) => h.program, (h) => [h.login, h.host].filter(Boolean).join(' from ')],
    ['State', '', (h) => h.state],
    ['Last statement', 'code', (h) => h.statement],
  ], t.open, t.error ? `The database did not answer the query: ${t.error}`
    : t.known ? 'None that the login may see.' : 'This database does not report whose transactions are open.');
  table('oldest', 'oldest-h', [
    ['Has waited', 'time', (m) => since(r.now, m.since)],
    ['Target', '', (m) => m.target],
    ['Message ID', 'id', (m) => m.id],
  ], r.oldest, 'No message waits.');

  setText(byID('targets-n'), number.format(r.targets_unavailable));
  table('targets', 'targets-h', [
    ['Target', '', (x) => x.target],
    ['Why', 'why', (x) => x.reason, (x) => x.fix],
    ['Unavailable for', 'time', (x) => since(r.now, x.since)],
    ['Waiting', 'number', (x) => number.format(x.messages)],
    ['Next dead letter', 'time', (x) => x.dead_letter_at ? `in ${since(x.dead_letter_at, r.now)}` : ''],
  ], r.targets, 'None: every target takes its messages.');

  byID('keys-section').hidden = r.keys === null;
  setText(byID('keys-n'), number.format(r.keys_waiting));
  table('keys', 'keys-h', [
    ['Has waited', 'time', (k) => since(r.now, k.since)],
    ['Key', '', (k) => k.key],
    ['Queue', '', (k) => k.queue],
    ['First message', 'id', (k) => k.id],
    ['Behind it', 'number', (k) => number.format(k.messages)],
  ], r.keys || [], 'None: no message waits for an earlier one of its key.');

  const dead = r.dead_by_reason.reduce((n, x) => n + x.count, 0);
  setText(byID('dead-n'), number.format(dead));
  byID('reasons').replaceChildren(...r.dead_by_reason.map((x) => {
    const e = make('div');
    e.append(make('dt', '', x.reason), make('dd', '', number.format(x.count)));
    return e;
  }));
  table('dead', 'dead-last-h', [
    ['When', 'time', (d) => when(d.at)],
    ['Reason', 'reason', (d) => d.reason],
    ['Target', '', (d) => d.target],
    ['Message ID', 'id', (d) => d.id],
  ], r.dead, 'None since this worker began.');
  table('dropped', 'dropped-h', [
    ['When', 'time', (d) => when(d.at)],
    ['Target', '', (d) => d.target],
    ['Message ID', 'id', (d) => d.id],
  ], r.dropped, 'None since this worker began.');
}

let fresh = 0; // when the last data came, by the browser's steady clock
let turn = 0;  // only the latest round of requests goes on

function age() {
  const seconds = (performance.now() - fresh) / 1000;
  const stale = fresh === 0 ? performance.now() > 2 * patience : seconds > 2 * every / 1000 + 1;
  const paused = isPaused();
  setText(byID('fresh'), fresh === 0 ? 'no data yet'
    : paused ? `paused; ${span(seconds)} old` : stale ? `${span(seconds)} old` : 'up to date');
  const e = byID('stale');
  e.hidden = paused || !stale;
  setText(e, e.hidden ? '' : 'The worker does not answer. The data below is old; trying again.');
}

const isPaused = () => byID('pause').getAttribute('aria-pressed') === 'true';

async function ask(mine) {
  try {
    const answer = await fetch('status.json', { cache: 'no-store', signal: AbortSignal.timeout(patience) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const r = await answer.json();
    if (mine !== turn) return;
    fresh = performance.now();
    show(r);
  } catch (err) {
    console.warn('status.json:', err.message);
  }
  age();
  if (mine === turn && !isPaused()) setTimeout(() => { if (mine === turn) ask(mine); }, every);
}

byID('pause').addEventListener('click', () => {
  const paused = !isPaused();
  byID('pause').setAttribute('aria-pressed', String(paused));
  turn++;
  if (!paused) ask(turn);
  age();
});
setInterval(age, 1000);
ask(turn);
