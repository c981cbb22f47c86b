#include "report/page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "report/escape.hpp"
#include "report/page_style.hpp"
#include "report/palette.hpp"
#include "report/plot_script.hpp"
#include "report/svg.hpp"

namespace stet::report {
namespace {

constexpr std::size_t kMostRows = 200;    // of numbers in a plot's place: the rest is in its file
constexpr std::size_t kContentsFrom = 4;  // sections that are worth a list of contents

// Nothing may be loaded or run, whatever a model wrote.
constexpr std::string_view kPolicy =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

std::string variables(std::string_view Colour::*of, std::string_view block) {
  std::string text = fmt::format("--block:{};", block);
  for (const Colour& colour : {kInk, kMuted, kGrid, kPaper}) text += fmt::format("--{}:{};", colour.name, colour.*of);
  for (const Colour& colour : kSeriesColours) text += fmt::format("--{}:{};", colour.name, colour.*of);
  return text;
}

// "total, s" is not to be broken before its unit.
std::string with_unit(std::string name) {
  constexpr std::string_view kBreak = ", ", kNoBreak = ",\xC2\xA0";
  if (const auto at = name.rfind(kBreak); at != std::string::npos) name.replace(at, kBreak.size(), kNoBreak);
  return name;
}

class Page {
 public:
  Page(const Report& report, const std::map<std::string, std::string>& pictures, const std::string& no_plots)
      : report_(report), pictures_(pictures), no_plots_(no_plots) {}

  std::string text() {
    head();
    contents();
    for (std::size_t i = 0; i < report_.sections.size(); ++i) section(report_.sections[i], i + 1);
    add("<footer><p class=\"files\">All of it for programs: <a href=\"report.json\">report.json</a></p></footer>\n"
        "</body>\n</html>\n");
    return std::move(out_);
  }

 private:
  void add(std::string_view text) { out_ += text; }
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }
  void paragraph(std::string_view text, std::string_view kind = {}) {
    if (text.empty()) return;
    if (kind.empty()) {
      add("<p>{}</p>\n", html_of(text, true));
    } else {
      add("<p class=\"{}\">{}</p>\n", kind, html_of(text, true));
    }
  }

  void head() {
    const std::string light = variables(&Colour::light, "#f4f4f2"), dark = variables(&Colour::dark, "#202329");
    add("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    add("<meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n", kPolicy);
    add("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
        "<meta name=\"color-scheme\" content=\"light dark\">\n");
    add("<title>{}</title>\n<style>\n:root{{color-scheme:light dark;{}}}\n", html_of(report_.title), light);
    add("@media (prefers-color-scheme:dark){{:root{{{}}}}}\n@media print{{:root{{color-scheme:light;{}}}}}{}</style>\n",
        dark, light, kPageStyle);
    add("</head>\n<body>\n<header>\n<h1>{}</h1>\n", html_of(report_.title));
    paragraph(report_.summary, "summary");
    if (!no_plots_.empty()) paragraph("Numbers stand in the place of pictures: " + no_plots_ + ".", "warning");
    if (!report_.facts.empty()) {
      add("<dl>\n");
      for (const auto& [name, value] : report_.facts) {
        add("<dt>{}</dt><dd>{}</dd>\n", html_of(name), html_of(value, true));
      }
      add("</dl>\n");
    }
    add("</header>\n");
  }

  void contents() {
    if (report_.sections.size() < kContentsFrom) return;
    add("<nav aria-label=\"Contents\"><ul>\n");
    for (std::size_t i = 0; i < report_.sections.size(); ++i) {
      add("<li><a href=\"#section-{}\">{}</a></li>\n", i + 1, html_of(report_.sections[i].title));
    }
    add("</ul></nav>\n");
  }

  void section(const Section& section, std::size_t number) {
    add("<section>\n<h2 id=\"section-{}\">{}</h2>\n", number, html_of(section.title));
    for (const std::string& words : section.paragraphs) paragraph(words);
    for (const Plot& plot : section.plots) figure(plot);
    for (const Table& rows : section.tables) {
      table(rows, rows.title);
      add("<p class=\"files\"><a href=\"{0}.csv\">{0}.csv</a></p>\n", html_of(rows.name));
    }
    for (const Quote& quote : section.quotes) {
      add("<div class=\"quote\"><p>{}</p><pre>{}</pre></div>\n", html_of(quote.label), html_of(quote.text, true));
    }
    add("</section>\n");
  }

  void figure(const Plot& plot) {
    add("<figure>\n");
    const auto picture = pictures_.find(plot.name);
    if (picture != pictures_.end()) {
      add("<div class=\"wide\">\n{}</div>\n", svg_for_page(picture->second, plot));
    } else {
      numbers(plot);
    }
    std::string caption = plot.caption;
    if (const std::size_t lost = left_out(plot); lost > 0 && picture != pictures_.end()) {
      caption += fmt::format("{}{} {} not shown: not finite{}.", caption.empty() ? "" : " ", lost,
                             lost == 1 ? "point is" : "points are",
                             plot.x.log || plot.y.log ? ", or not above 0 on a logarithmic axis" : "");
    }
    if (!caption.empty()) add("<figcaption>{}</figcaption>\n", html_of(caption, true));
    const std::string name = html_of(plot.name);
    add("<p class=\"files\">");
    if (picture != pictures_.end()) add("<a href=\"{0}.svg\">{0}.svg</a> · <a href=\"{0}.png\">{0}.png</a> · ", name);
    add("<a href=\"{0}.data.csv\">{0}.data.csv</a></p>\n</figure>\n", name);
  }

  // What would have been drawn.
  void numbers(const Plot& plot) {
    Table rows = data_of(plot);
    const std::size_t all = rows.rows.size();
    if (all > kMostRows) {
      const std::size_t each = (all + kMostRows - 1) / kMostRows;
      std::vector<std::vector<Cell>> some;
      for (std::size_t i = 0; i < all; i += each) some.push_back(std::move(rows.rows[i]));
      rows.rows = std::move(some);
      rows.note = fmt::format("One row of each {} of {}; the file has all.", each, all);
    }
    table(rows, plot.title);
  }

  void table(const Table& table, const std::string& title) {
    add("<div class=\"wide\"><table>\n");
    if (!title.empty()) add("<caption>{}</caption>\n", html_of(title));
    const auto row = [&](const char* tag, const auto& text_of_cell) {
      add("<tr>");
      for (std::size_t i = 0; i < table.columns.size(); ++i) {
        add("<{}{}>{}</{}>", tag, table.columns[i].text ? " class=\"t\"" : "", html_of(text_of_cell(i)),
            std::string_view(tag).substr(0, 2));
      }
      add("</tr>\n");
    };
    add("<thead>");
    row("th scope=\"col\"", [&](std::size_t i) { return with_unit(table.columns[i].name); });
    add("</thead>\n<tbody>\n");
    for (const auto& cells : table.rows) {
      row("td",
          [&](std::size_t i) { return i < cells.size() ? std::string_view(cells[i].shown) : std::string_view(); });
    }
    add("</tbody>\n</table></div>\n");
    paragraph(table.note, "note");
  }

  const Report& report_;
  const std::map<std::string, std::string>& pictures_;
  const std::string& no_plots_;
  std::string out_;
};

}  // namespace

Table data_of(const Plot& plot) {
  Table table;
  table.name = plot.name + ".data";
  table.columns = {{"series", "series", true}, {plot.x.label, "x"}, {plot.y.label, "y"}};
  for (const Series& series : plot.series) {
    for (const auto& [x, y] : series.points) {
      table.rows.push_back({series.label,
                            {fmt::format("{:.6g}", x), fmt::format("{}", x)},
                            {fmt::format("{:.6g}", y), fmt::format("{}", y)}});
    }
  }
  return table;
}

std::string page_of(const Report& report, const std::map<std::string, std::string>& pictures,
                    const std::string& no_plots) {
  return Page(report, pictures, no_plots).text();
}

}  // namespace stet::report
