"use strict";
/* The scheme is the reader's choice for this page, or the system's. */
var dormouseScheme = (() => {
  const KEY = "dormouse-lab-scheme", system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => { try { return localStorage.getItem(KEY); } catch { return null; } };
  let chosen = stored();
  const now = () => (chosen === "light" || chosen === "dark" ? chosen : system.matches ? "dark" : "light");
  const apply = (scheme) => { document.documentElement.dataset.scheme = scheme; };
  const store = (scheme) => { try { localStorage.setItem(KEY, scheme); } catch { /* It lasts as long as the page. */ } };
  const choose = (scheme) => { chosen = scheme; store(scheme); };
  apply(now());
  return { now, apply, choose, system };
})();
