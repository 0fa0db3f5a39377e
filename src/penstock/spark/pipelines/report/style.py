"""The style sheet of a report. Colours are variables, so that plots have dark ones, too."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark;
  --page: #f4f5f7; --paper: #ffffff; --ink: #1c2430; --faint: #5f6b7a; --grid: #e3e7ec;
  --good: #1a7f4b; --warn: #b25e00; --bad: #c42b3b;
  --s1: #2f6fde; --s2: #e0662c; --s3: #e2a512; --s4: #2c9d6c;
  --s5: #9457d0; --s6: #1fa3bd; --s7: #d1478c; --s8: #7b8794; }
@media (prefers-color-scheme: dark) { :root {
  --page: #11161d; --paper: #1a212b; --ink: #e6ebf2; --faint: #9aa7b8; --grid: #2e3845;
  --good: #4cc38a; --warn: #f0a35a; --bad: #ff7b86;
  --s1: #6ea3ff; --s2: #ff9a66; --s3: #f2c14e; --s4: #5ccb98;
  --s5: #bb8cf0; --s6: #5fcfe3; --s7: #f382b7; --s8: #a3aebc; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 3rem; max-width: 76rem; background: var(--page);
  color: var(--ink); line-height: 1.45;
  font: 16px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans",
    Arial, sans-serif; }
h1 { margin: 0; font-size: 1.75rem; letter-spacing: -0.01em; }
h2 { margin: 0; font-size: 1.1rem; }
p { margin: 0.25rem 0 0; color: var(--faint); font-size: 0.92rem; }
header dl { display: grid; grid-template-columns: repeat(6, minmax(0, 1fr));
  gap: 0.8rem; margin: 1.4rem 0 0; }
.card { background: var(--paper); border: 1px solid var(--grid); border-radius: 10px;
  padding: 0.85rem 1rem; }
.card dt { color: var(--faint); font-size: 0.85rem; }
.card dd { margin: 0.1rem 0; font-size: 1.7rem; font-weight: 650; letter-spacing: -0.02em;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.card small { color: var(--faint); font-size: 0.8rem; }
.card.good dd { color: var(--good); } .card.warn dd { color: var(--warn); }
.card.bad dd { color: var(--bad); }
main { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 0.8rem;
  margin-top: 0.8rem; }
section { background: var(--paper); border: 1px solid var(--grid); border-radius: 10px;
  padding: 1.1rem 1.2rem; min-width: 0; }
section.wide { grid-column: 1 / -1; }
svg { display: block; width: 100%; height: auto; margin-top: 0.9rem; font-family: inherit; }
.nothing { padding: 2.2rem 0; text-align: center; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin-top: 0.8rem; font-size: 0.92rem; }
th { text-align: left; font-weight: 600; color: var(--faint); font-size: 0.82rem; }
th, td { padding: 0.42rem 0.9rem 0.42rem 0; border-bottom: 1px solid var(--grid);
  vertical-align: top; }
td { overflow-wrap: anywhere; min-width: 6.5rem; }
tbody tr:last-child td { border-bottom: 0; }
.n { text-align: right; min-width: 0; padding-right: 0; padding-left: 0.9rem; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
details { margin-top: 0.9rem; } summary { cursor: pointer; color: var(--faint);
  font-size: 0.92rem; }
footer { margin-top: 1.4rem; }
@media (max-width: 68rem) { header dl { grid-template-columns: repeat(3, minmax(0, 1fr)); } }
@media (max-width: 52rem) { main { grid-template-columns: minmax(0, 1fr); }
  body { padding-top: 1.2rem; } }
.small { display: none; }
/* On a phone: smaller drawings, whose text keeps its size, and a line for each cell of a table. */
@media (max-width: 36rem) { .large { display: none; } .small { display: block; }
  body { padding-left: 0.7rem; padding-right: 0.7rem; } section { padding: 0.9rem 0.8rem; }
  header dl { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .card dd { font-size: 1.4rem; white-space: normal; overflow-wrap: anywhere; }
  thead { display: none; } table, tbody, tr, td { display: block; width: 100%; }
  tr { padding: 0.5rem 0; border-bottom: 1px solid var(--grid); }
  tbody tr:last-child { border-bottom: 0; }
  td, td.n { display: flex; justify-content: space-between; gap: 1rem; min-width: 0;
    padding: 0.12rem 0; border-bottom: 0; text-align: right; white-space: normal; }
  td::before { content: attr(data-head); flex: none; color: var(--faint); text-align: left; } }
@media print { body { max-width: none; padding: 0; } section { break-inside: avoid; } }
"""
