#include "report/svg.hpp"

#include <fmt/format.h>

#include "report/escape.hpp"
#include "report/palette.hpp"

namespace stet::report {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// gnuplot says what it is; the picture should say what it shows.
void mend(std::string& svg, const Plot& plot) {
  replace_all(svg, "<title>Gnuplot</title>", fmt::format("<title>{}</title>", html_of(plot.title)));
  const auto from = svg.find("<desc>"), to = svg.find("</desc>");
  if (from < to && to != std::string::npos) svg.erase(from, to + std::string_view("</desc>").size() - from);
  replace_all(svg, "]]>", "]]&gt;");  // gnuplot leaves it as it is in a text, where XML forbids it
  // The names of curves are in the picture; browsers would show these when the mouse rests on one.
  for (int i = 1; i <= static_cast<int>(plot.series.size()); ++i) {
    replace_all(svg, fmt::format("<title>gnuplot_plot_{}</title>", i), "");
  }
  replace_all(svg, "font-family=\"sans-serif:Bold\"", "font-family=\"sans-serif\" font-weight=\"bold\"");
}

// As gnuplot writes it: for strokes padded to three places, for text not.
void set_colour(std::string& svg, const Colour& colour) {
  const auto part = [&](std::size_t at) { return std::stoi(std::string(colour.light.substr(at, 2)), nullptr, 16); };
  const int r = part(1), g = part(3), b = part(5);
  const std::string padded = fmt::format("rgb({:3}, {:3}, {:3})", r, g, b),
                    tight = fmt::format("rgb({},{},{})", r, g, b);
  const std::string variable = fmt::format("var(--{})", colour.name);
  // Only in attributes: a label may say anything.
  for (const char* attribute : {"stroke", "fill", "color"}) {
    for (const std::string& as : {padded, tight}) {
      for (const char quote : {'"', '\''}) {
        replace_all(svg, fmt::format(" {}={}{}{}", attribute, quote, as, quote),
                    fmt::format(" {}=\"{}\"", attribute, variable));
        replace_all(svg, fmt::format("<path {}={}{}{}", attribute, quote, as, quote),
                    fmt::format("<path {}=\"{}\"", attribute, variable));
      }
    }
  }
}

}  // namespace

bool is_svg(std::string_view bytes) {
  const auto end = bytes.find_last_not_of(" \t\r\n");
  return bytes.starts_with("<?xml") && bytes.find("<svg") != std::string_view::npos &&
         bytes.substr(0, end + 1).ends_with("</svg>");
}

bool is_png(std::string_view bytes) {
  constexpr std::string_view kSignature("\x89PNG\r\n\x1a\n", 8), kEnd("IEND\xAE\x42\x60\x82", 8);
  return bytes.starts_with(kSignature) && bytes.ends_with(kEnd);
}

std::string svg_for_file(std::string svg, const Plot& plot) {
  mend(svg, plot);
  constexpr std::string_view kCanvas = "<g id=\"gnuplot_canvas\">";
  if (const auto at = svg.find(kCanvas); at != std::string::npos) {
    svg.insert(at, fmt::format("<rect width=\"100%\" height=\"100%\" fill=\"{}\"/>\n", kPaper.light));
  }
  return svg;
}

std::string svg_for_page(std::string svg, const Plot& plot) {
  mend(svg, plot);
  svg.erase(0, svg.find("<svg"));
  svg.insert(std::string_view("<svg").size(),
             fmt::format(" role=\"img\" aria-label=\"{}\" class=\"plot\"", html_of(plot.title)));
  for (const char* id : {"gp", "gnuplot_", "textbox", "greybox"}) {
    replace_all(svg, fmt::format(" id='{}", id), fmt::format(" id='{}-{}", plot.name, id));
    replace_all(svg, fmt::format(" id=\"{}", id), fmt::format(" id=\"{}-{}", plot.name, id));
    replace_all(svg, fmt::format("href='#{}", id), fmt::format("href='#{}-{}", plot.name, id));
  }
  for (const Colour& colour : kSeriesColours) set_colour(svg, colour);
  for (const Colour& colour : {kInk, kMuted, kGrid}) set_colour(svg, colour);
  return svg;
}

}  // namespace stet::report
