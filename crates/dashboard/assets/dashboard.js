// The page's own behaviour: theme, ages, keys of the approvals, the state of the live connection, plots.
// Everything works without it except live updates and plots.
(() => {
  'use strict';
  const root = document.documentElement;
  const themes = ['auto', 'light', 'dark'];
  let theme = 'auto';
  try { theme = localStorage.getItem('theme') || 'auto'; } catch { /* no storage: follow the system */ }
  root.dataset.theme = themes.includes(theme) ? theme : 'auto';

  // Ages are text, so that a screen reader reads what is seen.
  const units = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  function showAge(time, now) {
    const seconds = Math.round((now - Date.parse(time.dateTime)) / 1000);
    const size = Math.abs(seconds);
    const [length, unit] = units.find(([length]) => size >= length) || units[3];
    const text = Math.floor(size / length) + ' ' + unit;
    const shown = seconds < 0 ? 'in ' + text : text + ' ago';
    if (time.textContent !== shown) time.textContent = shown;
  }
  function showAges(within) {
    const now = Date.now();
    for (const time of within.querySelectorAll('time')) showAge(time, now);
  }

  // A long session must not fill the browser's memory: its oldest events go first.
  const MOST_EVENTS = 2000;
  function trim() {
    const events = document.getElementById('events');
    while (events && events.childElementCount > MOST_EVENTS) events.firstElementChild.remove();
  }

  function connection(word) {
    const shown = document.getElementById('connection');
    if (shown && shown.textContent !== word) shown.textContent = word;
    root.dataset.live = word;
  }

  function plot(place) {
    const days = place.dataset.days.split(' ').map(day => Date.parse(day) / 1000);
    const costs = place.dataset.costs.split(' ').map(Number);
    // A canvas knows colours, not variables.
    const resolve = name => { place.style.color = `var(${name})`; return getComputedStyle(place).color; };
    const color = resolve('--accent'), text = resolve('--text');
    const axis = { stroke: text, grid: { stroke: 'rgba(128,128,128,.3)' } };
    const series = [{}, { label: 'US dollars', stroke: color, fill: color, paths: uPlot.paths.bars({ size: [0.7, 40] }) }];
    const data = [days, costs];
    if (place.dataset.limit) {
      series.push({ label: 'limit', stroke: text, dash: [4, 4] });
      data.push(days.map(() => Number(place.dataset.limit)));
    }
    const day = 86400;
    const x = { time: true, range: [days[0] - day, days[days.length - 1] + day] };
    new uPlot({ width: place.clientWidth, height: 180, series, axes: [axis, axis], tzDate: at => uPlot.tzDate(new Date(at * 1e3), 'Etc/UTC'),
      scales: { x, y: { range: (_, low, high) => [0, Math.max(high, 0.01)] } } }, data, place);
  }

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest('input, textarea, select')) return;
    const cards = [...document.querySelectorAll('.approval')];
    const here = cards.indexOf(event.target.closest('.approval'));
    const step = { j: 1, k: -1 }[event.key];
    if (step && cards.length) {
      cards[Math.min(Math.max(here + step, 0), cards.length - 1)].focus();
      event.preventDefault();
    } else if (here >= 0) {
      const target = cards[here].querySelector(`[data-key="${CSS.escape(event.key)}"]`);
      if (!target) return;
      if (target.tagName === 'BUTTON') target.click(); else target.focus();
      event.preventDefault();
    }
  }

  document.addEventListener('DOMContentLoaded', () => {
    showAges(document);
    setInterval(() => { if (!document.hidden) showAges(document); }, 1000);
    new MutationObserver(changes => {
      const now = Date.now();
      for (const { target, addedNodes } of changes) {
        // An update writes the time itself into a row that is there already.
        const time = (target.closest ? target : target.parentElement)?.closest('time');
        if (time) showAge(time, now);
        for (const node of addedNodes) if (node.querySelectorAll) showAges(node);
      }
      trim();
    }).observe(document.body, { childList: true, subtree: true, characterData: true });
    document.addEventListener('keydown', onKey);
    document.addEventListener('htmx:sse:after:connection', () => connection('live'));
    document.addEventListener('htmx:sse:error', event => {
      connection('not connected: trying again');
      // The session of this browser has ended.
      if (event.detail.status === 401) location.assign('/login');
    });
    document.addEventListener('htmx:sse:close', () => connection('not connected'));
    document.getElementById('theme')?.addEventListener('click', () => {
      const next = themes[(themes.indexOf(root.dataset.theme) + 1) % themes.length];
      root.dataset.theme = next;
      try { localStorage.setItem('theme', next); } catch { /* for this page only */ }
    });
  });
  window.addEventListener('load', () => {
    if (window.uPlot) for (const place of document.querySelectorAll('.plot')) plot(place);
  });
})();
