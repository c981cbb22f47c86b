#include "report/axis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace stet::report {
namespace {

constexpr double kMost = 1e150;  // beyond it, and closer to 0, the arithmetic of an axis overflows
constexpr double kRoom = 0.05;   // of the axis
constexpr int kTicks = 7;        // at most, so that labels do not touch

std::string power_of_ten(int exponent) {
  constexpr std::string_view kDigits[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  std::string text = "10";
  for (const char c : fmt::format("{}", exponent)) text += c == '-' ? "⁻" : kDigits[c - '0'];
  return text;
}

// 1,024 where an axis counts tokens is 1k: contexts are powers of two.
std::string tokens_label(double value) {
  constexpr double kKilo = 1024;
  const double size = std::abs(value);
  if (size >= kKilo * kKilo) return fmt::format("{:g}M", value / kKilo / kKilo);
  if (size >= kKilo) return fmt::format("{:g}k", value / kKilo);
  return fmt::format("{:g}", value);
}

// With as many digits as tell ticks of such a step apart.
std::string plain_label(double value, double step) {
  if (value == 0) return "0";
  const double size = std::max(std::abs(value), step);
  if (size >= 1e6 || size < 1e-4) return fmt::format("{:.4g}", value);
  const int digits = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  // A step of 2.5 or 0.25 needs one digit more than its size says.
  const double scaled = step * std::pow(10, digits);
  const int more = std::abs(scaled - std::round(scaled)) > 1e-6 ? 1 : 0;
  if (digits + more > 0) return fmt::format("{:.{}f}", value, digits + more);
  return grouped(std::llround(value));
}

// The smallest of 1, 2, 2.5 and 5 times a power of ten (of tokens: a power of two) that needs no more than kTicks.
double step_of(double span, bool tokens) {
  const double least = span / kTicks;
  if (tokens) return std::max(1.0, std::exp2(std::ceil(std::log2(least))));
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

std::vector<Tick> linear_ticks(const Scale& scale, bool tokens) {
  std::vector<Tick> ticks;
  tokens = tokens && scale.high - scale.low >= 2;  // there is no part of a token
  const double step = step_of(scale.high - scale.low, tokens);
  const double first = std::ceil(scale.low / step - 1e-9), slack = step * 1e-6;
  for (int i = 0; i < 4 * kTicks; ++i) {
    const double value = (first + i) * step;
    if (value > scale.high + slack) break;
    ticks.push_back({value, tokens ? tokens_label(value) : plain_label(value, step)});
  }
  return ticks;
}

// Powers of two; each k-th has words.
std::vector<Tick> token_ticks(const Scale& scale) {
  const int low = static_cast<int>(std::ceil(std::log2(scale.low) - 1e-9));
  const int high = static_cast<int>(std::floor(std::log2(scale.high) + 1e-9));
  const int each = std::max(1, (high - low + kTicks) / (kTicks + 1));
  std::vector<Tick> ticks;
  for (int e = low; e <= high; ++e) {
    const double value = std::exp2(e);
    // Counted from the top: the longest context is what a reader looks for.
    ticks.push_back({value, (high - e) % each == 0 ? tokens_label(value) : ""});
  }
  return ticks;
}

std::string decade_label(double value, int exponent) {
  if (exponent < -3 || exponent > 5) return power_of_ten(exponent);
  return exponent < 0 ? fmt::format("{:g}", value) : grouped(std::llround(value));
}

// Decades have words, each k-th of many; between few of them 2 and 5 have words too.
std::vector<Tick> decimal_ticks(const Scale& scale) {
  const double low = std::log10(scale.low) - 1e-9, high = std::log10(scale.high) + 1e-9;
  const int each = std::max(1, static_cast<int>((high - low) / kTicks));
  const bool between = high - low < 2.4, minor = high - low < 2.0 * kTicks;
  std::vector<Tick> ticks;
  for (int e = static_cast<int>(std::floor(low)); e <= static_cast<int>(std::floor(high)); ++e) {
    for (int digit = 1; digit <= (minor ? 9 : 1); ++digit) {
      const double value = std::strtod(fmt::format("{}e{}", digit, e).c_str(), nullptr);
      if (std::log10(value) < low || std::log10(value) > high) continue;
      const bool words = digit == 1 ? e % each == 0 : between && (digit == 2 || digit == 5) && e >= -3 && e <= 5;
      ticks.push_back({value, !words ? "" : digit == 1 ? decade_label(value, e) : plain_label(value, value)});
    }
  }
  return ticks;
}

bool has_two_labels(const std::vector<Tick>& ticks) {
  return std::count_if(ticks.begin(), ticks.end(), [](const Tick& t) { return !t.label.empty(); }) >= 2;
}

void set_ticks(Scale& scale, const Axis& axis) {
  if (scale.log) {
    scale.ticks = axis.tokens ? token_ticks(scale) : decimal_ticks(scale);
    if (has_two_labels(scale.ticks)) return;  // else the axis is so short that it is nearly linear
  }
  scale.ticks = linear_ticks(scale, axis.tokens);
}

// Equal values in the middle.
void widen(Scale& scale) {
  const double value = scale.low;
  if (scale.log) {
    scale.low = value / 2;
    scale.high = value * 2;
  } else {
    const double half = value == 0 ? 1 : std::abs(value) / 2;
    scale.low = value - half;
    scale.high = value + half;
  }
}

void add_room(Scale& scale) {
  if (scale.log) {
    const double factor = std::pow(scale.high / scale.low, kRoom);
    scale.low /= factor;
    scale.high *= factor;
    return;
  }
  const double room = (scale.high - scale.low) * kRoom;
  if (scale.low < 0 || scale.low > room) scale.low -= room;  // an axis does not go below 0 for room alone
  if (scale.high != 0) scale.high += room;
}

}  // namespace

double Scale::at(double value) const {
  return log ? (std::log(value) - std::log(low)) / (std::log(high) - std::log(low)) : (value - low) / (high - low);
}

bool shows(const Axis& axis, double value) {
  if (!std::isfinite(value) || std::abs(value) > kMost) return false;
  return !axis.log || value >= 1 / kMost;
}

Scale scale_of(const Axis& axis, const std::vector<double>& values, Room room) {
  Scale scale;
  scale.log = axis.log;
  bool any = false;
  for (double value : values) {
    if (!shows(axis, value)) continue;
    if (std::abs(value) < 1 / kMost) value = 0;
    scale.low = any ? std::min(scale.low, value) : value;
    scale.high = any ? std::max(scale.high, value) : value;
    any = true;
  }
  if (!any) scale.low = scale.high = 1;
  if (axis.from_zero && !axis.log) {
    scale.low = std::min(scale.low, 0.0);
    scale.high = std::max(scale.high, 0.0);
  }
  const double size = std::max(std::abs(scale.low), std::abs(scale.high));
  if (scale.high - scale.low <= 1e-9 * size || scale.high == scale.low) {
    if (axis.from_zero && size == 0) {
      scale.high = 1;
    } else {
      widen(scale);
    }
  } else if (room == Room::above_and_below) {
    const bool at_zero = axis.from_zero && scale.low == 0;
    add_room(scale);
    if (at_zero) scale.low = 0;
  }
  set_ticks(scale, axis);
  return scale;
}

}  // namespace stet::report
