// Charts: Bokeh draws them; text and lines take the colours of the page, light or dark.
"use strict";
const reportData = JSON.parse(document.getElementById("data").textContent);

const chartsReady = (async () => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const seen = new Map();  // the scheme that a chart has the colours of

  function recolour() {
    const style = getComputedStyle(document.documentElement);
    const [ink, quiet, line] = ["--ink", "--quiet", "--line"].map((name) => style.getPropertyValue(name).trim());
    const font = getComputedStyle(document.body).fontFamily;
    const axis = {
      axis_label_text_color: quiet, major_label_text_color: ink, axis_line_color: line, major_tick_line_color: line,
      minor_tick_line_color: null, axis_label_text_font: font, major_label_text_font: font,
      axis_label_text_font_style: "normal", axis_label_text_font_size: "13px", major_label_text_font_size: "12px",
    };
    const looks = {
      LinearAxis: axis, CategoricalAxis: axis, Grid: { grid_line_color: line },
      Legend: { label_text_color: ink, label_text_font: font },
      LabelSet: { text_color: ink, text_font: font },
      ColorBar: {
        title_text_color: quiet, major_label_text_color: ink, background_fill_alpha: 0, title_text_font: font,
        title_text_font_style: "normal", bar_line_color: line,
      },
      Whisker: { line_color: ink }, TeeHead: { line_color: ink },
    };
    for (const made of Bokeh.documents.filter((one) => !seen.has(one) || seen.get(one) !== dark.matches)) {
      seen.set(made, dark.matches);
      for (const model of made.all_models) {
        if (model.type in looks) model.setv(looks[model.type]);
      }
    }
  }

  if (typeof Bokeh === "undefined") return;  // a plan with nothing to draw brings no charts
  for (const item of Object.values(reportData.charts)) {
    await new Promise((next) => setTimeout(next));  // between charts the page answers its reader
    await Bokeh.embed.embed_item(item);
    recolour();
  }
  dark.addEventListener("change", recolour);
})();
