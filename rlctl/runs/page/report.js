"use strict";
// Without this script the page has all its plots and tables; with it, values can be read off and settings filtered.

// The value of each curve at the step under the pointer, in place of its last one.
for (const figure of document.querySelectorAll("figure[data-points]")) {
  const { axes: [left, right, first, last], curves } = JSON.parse(figure.dataset.points);
  const plot = figure.querySelector(".plot");
  const picture = plot.querySelector("svg");
  const at = figure.querySelector(".at");
  const values = [...figure.querySelectorAll(".legend b")];
  const ends = values.map((value) => value.textContent);
  const cursor = document.createElement("div");
  cursor.className = "cursor";

  const nearest = (steps, wanted) => {
    let low = 0, high = steps.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] < wanted) low = middle; else high = middle;
    }
    return wanted - steps[low] <= steps[high] - wanted ? low : high;
  };

  plot.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width - left) / (right - left);
    if (share < 0 || share > 1) return;
    const wanted = first + share * (last - first);
    const step = curves[0][0][nearest(curves[0][0], wanted)];
    curves.forEach(([steps, shown], place) => {
      const index = nearest(steps, step);
      values[place].textContent = steps[index] === step ? shown[index] : "n/a";
    });
    at.hidden = false;
    at.textContent = `step ${step}`;
    cursor.style.left = `${box.width * (left + (right - left) * (step - first) / (last - first))}px`;
    plot.append(cursor);
  });

  plot.addEventListener("pointerleave", () => {
    values.forEach((value, place) => { value.textContent = ends[place]; });
    at.hidden = true;
    cursor.remove();
  });
}

const filter = document.getElementById("filter");
const own = document.getElementById("own");
if (filter && own) {
  filter.closest(".filter").hidden = false;
  const choose = () => {
    const wanted = filter.value.trim().toLowerCase();
    for (const table of document.querySelectorAll("details.table")) {
      let some = false;
      for (const row of table.querySelectorAll("tr")) {
        row.hidden = !row.textContent.toLowerCase().includes(wanted) || (own.checked && row.className !== "own");
        some ||= !row.hidden;
      }
      table.hidden = !some;
      table.open = some && (wanted !== "" || own.checked);
    }
  };
  filter.addEventListener("input", choose);
  own.addEventListener("change", choose);
}
