// How the page looks. Colours come from palette.hpp as variables.
#pragma once

#include <string_view>

namespace stet::report {

inline constexpr std::string_view kPageStyle = R"css(
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0 auto;padding:2.5rem 1.25rem 4rem;max-width:58rem;background:var(--paper);color:var(--ink);
 font:1rem/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{margin:0 0 .5rem;font-size:1.9em;line-height:1.2}
h2{margin:3rem 0 .75rem;padding-top:1rem;border-top:1px solid var(--grid);font-size:1.35em;line-height:1.3}
p{margin:.6rem 0;max-width:44rem;overflow-wrap:anywhere}
a{color:var(--s0)}
.summary{margin:.5rem 0 1.5rem;font-size:1.15em;line-height:1.5}
.warning{padding:.6rem .9rem;border-left:4px solid var(--s1);background:var(--block)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1.25rem;margin:1.25rem 0;padding:.9rem 1.1rem;
 background:var(--block);border-radius:6px;font-size:.92em}
dt{color:var(--muted)}
dd{margin:0;overflow-wrap:anywhere;white-space:pre-wrap;unicode-bidi:isolate}
nav ul{margin:1rem 0;padding-left:1.2rem}
figure{margin:1.75rem 0 2.25rem}
.wide{overflow-x:auto;max-width:100%}
svg.plot{display:block;width:100%;min-width:36rem;height:auto;font-variant-numeric:tabular-nums}
figcaption,.note,.files{color:var(--muted);font-size:.92em}
figcaption{margin-top:.5rem;max-width:44rem}
.files{margin:.25rem 0 0}
table{border-collapse:collapse;margin:1.25rem 0 .25rem;font-size:.92em;font-variant-numeric:tabular-nums}
caption{padding-bottom:.5rem;text-align:left;font-weight:600}
th,td{padding:.3rem .7rem;text-align:right;vertical-align:top;border-bottom:1px solid var(--grid)}
th:first-child,td:first-child{padding-left:0}
th{border-bottom:2px solid var(--muted);font-weight:600;vertical-align:bottom}
.t{text-align:left;overflow-wrap:break-word;unicode-bidi:isolate}
tbody tr:hover{background:var(--block)}
.quote{margin:1.25rem 0}
.quote p{margin-bottom:.3rem;font-weight:600}
pre{margin:0;padding:.8rem 1rem;background:var(--block);border-radius:6px;white-space:pre-wrap;overflow-wrap:anywhere;
 unicode-bidi:isolate;font:.88em/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
@media (max-width:36rem){body{padding-top:1.25rem}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.4rem}}
@media print{
 @page{margin:16mm}
 body{max-width:none;padding:0;font-size:10pt}
 h2{break-after:avoid}
 figure,.quote,tr,dl{break-inside:avoid}
 caption{break-after:avoid}
 thead{display:table-header-group}
 svg.plot{min-width:0;max-height:11cm}
 .wide{overflow:visible}
 nav,.files{display:none}
 a{color:inherit;text-decoration:none}
 tbody tr:hover{background:none}
}
)css";

}  // namespace stet::report
