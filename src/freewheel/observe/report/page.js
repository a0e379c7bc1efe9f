// Draws the plots of the page, and switches the x axis of those that have several.
(() => {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  // where there is no mouse, a finger on a plot is to scroll the page
  const mouse = window.matchMedia("(hover: hover)").matches;
  const config = {
    displaylogo: false,
    displayModeBar: mouse ? "hover" : false,
    responsive: true,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };
  const places = [...document.querySelectorAll(".plot")];

  const draw = async () => {
    for (const place of places) {
      const { data, layout } = figures[place.dataset.figure];
      await Plotly.newPlot(place, data, { ...layout, dragmode: mouse && "zoom" }, config);
    }
    document.documentElement.dataset.drawn = String(places.length);
  };

  const switchTo = (key) => {
    for (const place of places) {
      const { axes } = figures[place.dataset.figure];
      if (axes) {
        const { x, y, layout } = axes[key];
        Plotly.update(place, { x, y }, { ...layout, "xaxis.autorange": true, "yaxis.autorange": true });
      }
    }
  };

  for (const choice of document.querySelectorAll("input[name=axis]")) {
    choice.addEventListener("change", () => switchTo(choice.value));
  }
  draw();
})();
