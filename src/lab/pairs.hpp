// What a pair of verify is made of: two sides that are given the same ids and take different paths.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lab/paths.hpp"
#include "lab/verify.hpp"

namespace stet::lab {

// Seconds for one token alone, and for one row among many.
struct Cost {
  double token = 0, row = 0;
};

// What a pair's sides are given.
struct Given {
  const engine::Loaded* loaded;
  Ids ids, others;  // two sequences of the pair's length
  Wrap wrap;        // what is done to the cache of one side; empty: nothing
  KeepGoing go;
  const kernels::Target* target;
  Batching batching = ragged;  // how that side puts several sequences into one cache
  bool poison = true;          // whether that side's slots without a row are NaN

  Pos n() const { return static_cast<Pos>(ids.size()); }
  Conditions usual() const {
    Conditions conditions;
    conditions.target = target;
    return conditions;
  }
  Result<Outcome> path(const Schedule& schedule) const { return path(schedule, usual()); }
  Result<Outcome> path(const Schedule& schedule, const Conditions& conditions) const {
    return run(*loaded->model, schedule, conditions, go);
  }
  // The side that a fault damages.
  Conditions damaged() const { return damaged(usual()); }
  Conditions damaged(Conditions conditions) const {
    conditions.wrap = wrap;
    if (!poison) conditions.poison = std::nullopt;
    return conditions;
  }
  // A chunk that really makes more than one step.
  Pos chunk(Pos c) const { return std::min(c, std::max<Pos>(1, n() - 1)); }
};

using Side = std::function<Result<Outcome>(const Given&)>;

// One pair of paths.
struct Spec {
  std::string name;
  Side a, b;
  std::function<double(const Cost&, double n)> seconds;  // of both sides at length n
  bool ids = false;                                      // the elements are token ids
};

inline Result<Outcome> once(const Given& g) {
  return g.path(in_chunks(g.ids, g.n()));
}

inline double linear(const Cost& c, double n) {
  return n * (c.token + c.row);
}
inline double quadratic(const Cost& c, double n) {
  return n * c.token + n * n / 2 * c.row;
}

/// Pairs over the cache family: layouts, codecs, windows, forks, prefix hits and restoring, each held to the plain
/// cache of the same codec and windows. `all`: every combination, else a fair sample.
std::vector<Spec> cache_pairs(bool all);

/// Every pair of verify, for weights of that type. Side b is the one that Given::wrap and Given::batching change.
std::vector<Spec> all_pairs(DType weights, const kernels::Target& fastest, bool all);

/// Runs both sides and compares them.
Result<Pair> run_pair(const Spec& spec, const Given& given, DType dtype);

}  // namespace stet::lab
