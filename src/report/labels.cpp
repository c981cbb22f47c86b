#include "report/labels.hpp"

#include <algorithm>
#include <numeric>

#include "report/escape.hpp"

namespace stet::report {
namespace {

// Bytes of the first `count` code points.
std::size_t bytes_of(std::string_view text, std::size_t count) {
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    const bool begins = (static_cast<unsigned char>(text[at]) & 0xC0U) != 0x80U;
    if (begins && count-- == 0) break;
  }
  return at;
}

// Values as near to `wanted` as can be that never fall: neighbours that would are given their mean (pool adjacent
// violators; Ayer et al., 1955).
std::vector<double> not_falling(const std::vector<double>& wanted) {
  struct Block {
    double sum;
    std::size_t count;
    double mean() const { return sum / static_cast<double>(count); }
  };
  std::vector<Block> blocks;
  for (const double value : wanted) {
    blocks.push_back({value, 1});
    while (blocks.size() > 1 && blocks[blocks.size() - 2].mean() > blocks.back().mean()) {
      const Block last = blocks.back();
      blocks.pop_back();
      blocks.back().sum += last.sum;
      blocks.back().count += last.count;
    }
  }
  std::vector<double> values;
  for (const Block& block : blocks) values.insert(values.end(), block.count, block.mean());
  return values;
}

// Lines as full as they can be.
std::vector<std::string> filled(std::string rest, std::size_t width, std::size_t most) {
  std::vector<std::string> lines;
  while (lines.size() < most) {
    if (width_of(rest) <= width) {
      lines.push_back(rest);
      return lines;
    }
    std::size_t end = bytes_of(rest, width), next = end;
    if (const auto space = rest.rfind(' ', end); space != std::string::npos && space > 0) {
      end = space;
      next = space + 1;
    }
    lines.push_back(rest.substr(0, end));
    rest.erase(0, next);
  }
  std::string& last = lines.back();
  last.resize(bytes_of(last, width - 1));
  last += "…";
  return lines;
}

}  // namespace

std::vector<std::string> wrapped(std::string_view text, std::size_t width, std::size_t most) {
  const std::string line = line_of(text);
  std::vector<std::string> lines = filled(line, width, most);
  // As narrow as the same number of lines allows: no last line of one word.
  const bool cut = lines.back().ends_with("…") && !line.ends_with("…");
  for (std::size_t narrow = width - 1; !cut && narrow > width / 2; --narrow) {
    std::vector<std::string> even = filled(line, narrow, most + 1);
    if (even.size() > lines.size()) break;
    lines = std::move(even);
  }
  return lines;
}

std::vector<double> spread(const std::vector<Place>& wanted, double low, double high) {
  std::vector<std::size_t> order(wanted.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return wanted[a].at < wanted[b].at; });
  // Less the sizes below it, a label's place only must not fall from one to the next.
  double below = 0;
  std::vector<double> offsets, reduced;
  for (const std::size_t i : order) {
    offsets.push_back(below + wanted[i].size / 2);
    reduced.push_back(wanted[i].at - offsets.back());
    below += wanted[i].size;
  }
  const std::vector<double> placed = not_falling(reduced);
  std::vector<double> middles(wanted.size());
  for (std::size_t k = 0; k < order.size(); ++k) {
    middles[order[k]] = offsets[k] + std::clamp(placed[k], low, std::max(low, high - below));
  }
  return middles;
}

}  // namespace stet::report
