// What an experiment found, in a form that a terminal, a spreadsheet and a browser can show. Experiments fill in a
// Report and know nothing of where it goes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stet/result.hpp"

namespace stet::report {

/// A value as people read it ("8.9 ms") and as programs do ("8.913042"): CSV gets the second. A cell made of text alone
/// is the same for both; an empty one is a value that there is not.
struct Cell {
  std::string shown, exact;

  Cell() = default;
  Cell(const char* text) : Cell(std::string(text)) {}               // NOLINT(*-explicit-*)
  Cell(std::string text) : shown(std::move(text)), exact(shown) {}  // NOLINT(*-explicit-*)
  Cell(std::string people, std::string programs) : shown(std::move(people)), exact(std::move(programs)) {}
};

/// `digits` behind the point for people, all that the value has for programs.
Cell number(double value, int digits);
Cell count(long long value);

/// "131,072"
std::string grouped(std::int64_t n);

struct Column {
  std::string name;   // for people, with the unit: "step, ms"
  std::string field;  // for programs: "step_ms"
  bool text = false;  // left-aligned
};

struct Table {
  std::string name;   // of its files, without ending: "race"
  std::string title;  // one line; may be empty
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;  // as many cells as there are columns
  std::string note;                     // below it; may be empty
};

/// Aligned columns for a terminal: title, header, rows, note, a line feed behind each. Widths count code points; the
/// note is broken into lines as long as the table's, or 100.
std::string text_of(const Table& table);
/// RFC 4180, the fields' names first.
std::string csv_of(const Table& table);

struct Series {
  /// `line` joins the points, `points` are marks alone, `marked` both; `model` is a thin dashed line: what was computed
  /// beside what was measured. `steps` holds each value until the next.
  enum class Style : std::uint8_t { line, points, marked, model, steps };
  std::string label;  // stands at the end of the curve
  Style style = Style::line;
  std::vector<std::pair<double, double>> points;  // x ascending; what is not finite is left out
  int colour = -1;                                // of the palette; -1: the series' number. Same colour: same thing
};

/// A vertical line at x, with words.
struct Mark {
  double x = 0;
  std::string label;
};

struct Axis {
  std::string label;  // with its unit: "context, tokens"
  bool log = false;   // base 2 for counts of tokens, else base 10
  bool tokens = false;
  bool from_zero = false;
};

struct Plot {
  std::string name;   // of its files, without ending
  std::string title;  // what it shows, as a sentence: "With a cache a token costs the same wherever it stands"
  Axis x, y;
  std::vector<Series> series;
  std::vector<Mark> marks;
  std::string caption;  // what to see in it, and how it was measured
};

/// A text to show as it is, such as what a model wrote.
struct Quote {
  std::string label, text;
};

struct Section {
  std::string title;
  std::vector<std::string> paragraphs;  // plain text
  std::vector<Plot> plots;
  std::vector<Table> tables;
  std::vector<Quote> quotes;
};

struct Report {
  std::string title;                                       // "stet race"
  std::string summary;                                     // the answer in one or two sentences
  std::vector<std::pair<std::string, std::string>> facts;  // machine, build, model, seed, command, date
  std::vector<Section> sections;
  std::string json;  // the whole result as one JSON text, as --json prints it
};

/// A folder for reports. Files go in one by one, report.html last of all, and each whole or not at all: as long as a
/// report is not complete there is no page that looks so.
class Folder {
 public:
  /// Makes the folder if need be (its parent must be there), sees that files can be made in it, and takes away the
  /// report.html of an earlier run. Do it before the work, so that a long run does not end in "permission denied".
  /// Code::io names the folder and the system's reason.
  static Result<Folder> open(const std::string& path);

  struct Written {
    std::vector<std::string> files;  // names in the folder, in the order of writing
    std::string no_plots;            // why there are none: gnuplot is missing, or what it said; empty: there are
  };

  /// NAME.csv for each table, NAME.data.csv for each plot, report.json, NAME.svg and NAME.png for each plot (by
  /// gnuplot), and report.html, which holds all of it and loads nothing. Code::invalid_argument for a name that is not
  /// of letters, digits, - and _, or that two tables or two plots have. Without gnuplot the page shows the numbers that
  /// would have been plotted. Code::interrupted when `keep_going` answers false; then there is no report.html.
  Result<Written> write(const Report& report, const std::function<bool()>& keep_going = {}) const;

 private:
  explicit Folder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace stet::report
