#include <fmt/format.h>

#include <algorithm>

#include "report/escape.hpp"
#include "report/report.hpp"

namespace stet::report {
namespace {

constexpr std::size_t kNoteWidth = 100;

std::string padded(std::string_view text, std::size_t width, bool left) {
  const std::string space(width - std::min(width, width_of(text)), ' ');
  return left ? std::string(text) + space : space + std::string(text);
}

// Words in lines of at most `width`; line feeds of the text stay.
std::string filled(std::string_view text, std::size_t width) {
  std::string out;
  std::size_t column = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(" \n"), text.size());
    const std::string_view word = text.substr(0, end);
    if (column > 0 && column + 1 + width_of(word) > width) {
      out += '\n';
      column = 0;
    }
    out += column > 0 ? " " : "";
    out += word;
    column += (column > 0 ? 1 : 0) + width_of(word);
    if (end < text.size() && text[end] == '\n') {
      out += '\n';
      column = 0;
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out.ends_with('\n') ? out : out + '\n';
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

}  // namespace

Cell number(double value, int digits) {
  return {fmt::format("{:.{}f}", value, digits), fmt::format("{}", value)};
}

Cell count(long long value) {
  return {fmt::format("{}", value)};
}

std::string grouped(std::int64_t n) {
  std::string digits = fmt::format("{}", n);
  const std::ptrdiff_t first = n < 0 ? 1 : 0;
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > first; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), 1, ',');
  }
  return digits;
}

std::string text_of(const Table& table) {
  std::vector<std::size_t> widths;
  for (const Column& column : table.columns) widths.push_back(width_of(column.name));
  for (const auto& row : table.rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i].shown));
  }
  std::string text;
  const auto line = [&](const auto& word_of) {
    std::string one;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      one += (i == 0 ? "" : "  ") + padded(word_of(i), widths[i], table.columns[i].text);
    }
    while (one.ends_with(' ')) one.pop_back();
    text += one + '\n';
  };
  if (!table.title.empty()) text += table.title + '\n';
  line([&](std::size_t i) { return std::string_view(table.columns[i].name); });
  for (const auto& row : table.rows) {
    line([&](std::size_t i) { return std::string_view(row[i].shown); });
  }
  std::size_t width = 2 * (std::max<std::size_t>(widths.size(), 1) - 1);
  for (const std::size_t column : widths) width += column;
  if (!table.note.empty()) text += filled(table.note, std::max(width, kNoteWidth));
  return text;
}

std::string csv_of(const Table& table) {
  std::string text;
  const auto field = [&](std::size_t i, const std::string& value) {
    if (i > 0) text += ',';
    text += csv_field(value);
  };
  for (std::size_t i = 0; i < table.columns.size(); ++i) field(i, table.columns[i].field);
  text += "\r\n";
  for (const auto& row : table.rows) {
    for (std::size_t i = 0; i < row.size(); ++i) field(i, row[i].exact);
    text += "\r\n";
  }
  return text;
}

}  // namespace stet::report
