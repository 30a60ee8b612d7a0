"use strict";

// What all pages share: their data, elements, texts, and the theme.

const data = JSON.parse(document.getElementById("data").textContent);

const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

/** A text with control characters and changes of direction made visible. */
function visible(text) {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, (c) =>
    `\\u{${c.codePointAt(0).toString(16)}}`);
}

/** An element with attributes and children. */
function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== "" && child !== undefined && child !== null));
  return element;
}

/** An element of a drawing. */
function s(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function bytes(n) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  const power = n < 1000 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(n) / 3));
  return `${power ? (n / 1000 ** power).toPrecision(3) : n} ${units[power]}`;
}

/** Follows the theme of the system until the button is pressed. */
function startTheme() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const button = byId("theme");
  const show = (on) => {
    document.documentElement.dataset.theme = on ? "dark" : "light";
    button.setAttribute("aria-pressed", String(on));
  };
  show(dark.matches);
  dark.addEventListener("change", (event) => show(event.matches));
  button.addEventListener("click", () => show(document.documentElement.dataset.theme !== "dark"));
}

