#include "lab/golden.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

namespace stet::lab {
namespace {

using Json = nlohmann::json;

std::string shown(const std::vector<TokenId>& ids) {
  return fmt::format("[{}]", fmt::join(ids, ", "));
}

Result<GoldenCheck> check_greedy(Engine& engine, const Json& entry, const std::function<bool()>& keep_going) {
  GoldenCheck check;
  check.name = "greedy: " + entry.at("prompt").get<std::string>();
  Request request;
  request.prompt = entry.at("prompt_ids").get<std::vector<TokenId>>();
  const auto expected = entry.at("continuation_ids_by_encoding_the_text").get<std::vector<TokenId>>();
  if (engine.tokenizer() != nullptr) {
    auto encoded = engine.tokenizer()->encode(entry.at("prompt").get<std::string>());
    if (!encoded) return pass(encoded);
    if (*encoded != request.prompt) {
      check.detail =
          fmt::format("the tokenizer gives {} for the prompt, published is {}", shown(*encoded), shown(request.prompt));
      return check;
    }
  }
  request.max_new = static_cast<int>(expected.size());
  auto made = engine.generate({&request, 1}, {}, keep_going);
  if (!made) return pass(made);
  if (made->front().reason == StopReason::interrupted) return fail(Code::interrupted, "interrupted");
  check.passed = !expected.empty() && made->front().ids == expected;
  check.detail = check.passed ? fmt::format("{} ids as published", expected.size())
                              : fmt::format("ids {}, published {}", shown(made->front().ids), shown(expected));
  return check;
}

// Of what a file of others asks for; the exception ends as Code::corrupt in check_golden.
double value(const Logits& logits, std::size_t row, std::size_t id) {
  if (row >= logits.rows || id >= logits.vocab) {
    throw std::out_of_range(
        fmt::format("position {}, id {}: there are {} positions of {} ids", row, id, logits.rows, logits.vocab));
  }
  const std::size_t at = row * logits.vocab + id;
  if (logits.type == DType::f64) {
    double x;
    std::memcpy(&x, logits.data.data() + at * sizeof x, sizeof x);
    return x;
  }
  float x;
  std::memcpy(&x, logits.data.data() + at * sizeof x, sizeof x);
  return x;
}

Result<GoldenCheck> check_logits(Engine& engine, const Json& entry, const std::function<bool()>& keep_going) {
  GoldenCheck check;
  const auto ids = entry.at("ids").get<std::vector<TokenId>>();
  check.name = fmt::format("logits: {}", shown(ids));
  auto logits = engine.logits(ids, keep_going);
  if (!logits) return pass(logits);
  double worst = 0;
  std::size_t values = 0;
  const double tolerance = entry.at("tol").get<double>();
  const auto hold = [&](double seen, double expected, double scale) {
    const double d = std::abs(seen - expected) * scale;
    worst = std::isnan(d) ? std::numeric_limits<double>::infinity() : std::max(worst, d);  // NaN is as wrong as can be
    ++values;
  };
  for (const auto& [key, expected] : entry.items()) {
    if (key == "position0_spots") {
      for (const auto& [id, logit] : expected.items()) hold(value(*logits, 0, std::stoul(id)), logit.get<double>(), 1);
    } else if (key.starts_with("position") && key.ends_with("_first5")) {
      const std::size_t row = std::stoul(key.substr(8));
      for (std::size_t i = 0; i < expected.size(); ++i) hold(value(*logits, row, i), expected[i].get<double>(), 1);
    } else if (key == "mean_over_4x50257") {
      double sum = 0;
      for (std::size_t r = 0; r < logits->rows; ++r) {
        for (std::size_t i = 0; i < logits->vocab; ++i) sum += value(*logits, r, i);
      }
      hold(sum / static_cast<double>(logits->rows * logits->vocab), expected.get<double>(),
           tolerance / entry.at("mean_tol").get<double>());
    } else if (key == "argmax_per_position") {
      for (std::size_t r = 0; r < expected.size(); ++r) {
        std::size_t best = 0;
        for (std::size_t i = 1; i < logits->vocab; ++i)
          best = value(*logits, r, i) > value(*logits, r, best) ? i : best;
        hold(best == expected[r].get<std::size_t>() ? 0 : 1, 0, 1e9);
      }
    }
  }
  check.passed = values > 0 && worst <= tolerance;
  check.detail = fmt::format("{} values, largest difference {:.2g}, allowed {:.2g}", values, worst, tolerance);
  return check;
}

}  // namespace

Result<std::vector<GoldenCheck>> check_golden(Engine& engine, const std::string& text, const std::string& name,
                                              const std::function<bool()>& keep_going) {
  std::vector<GoldenCheck> checks;
  // The JSON library reports wrong types by exceptions; they stop here.
  try {
    const Json all = Json::parse(text);
    for (const auto& [kind, entries] : all.items()) {
      if (!entries.is_array()) continue;
      for (const Json& entry : entries) {
        Result<GoldenCheck> check;
        if (kind == "greedy") {
          check = check_greedy(engine, entry, keep_going);
        } else if (kind == "logits") {
          check = check_logits(engine, entry, keep_going);
        } else {
          check->name = kind;
          check->skipped = true;
          check->detail = "Stet has no check of this kind";
        }
        if (!check) return pass(check);
        checks.push_back(std::move(*check));
      }
    }
  } catch (const std::exception& e) {
    return fail(Code::corrupt, fmt::format("{}: not a file of published results: {}", name, e.what()));
  }
  return checks;
}

}  // namespace stet::lab
