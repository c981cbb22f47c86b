#include "engine/audit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kv/prefix_index.hpp"

namespace stet::engine {

Result<void> Auditor::check(const Bench& bench, int chunk, Seq hit, std::span<const TokenId> tokens) {
  due_ += fraction_;
  if (due_ < 1 || tokens.empty()) return {};
  due_ -= 1;
  auto anew = open_sequence(bench);
  if (!anew) {
    ++skipped;
    return {};
  }
  auto done = recompute(bench, chunk, *anew, tokens);
  if (done && *done) {
    ++audited;
    compare(*bench.cache, hit, *anew, static_cast<Pos>(tokens.size()));
  } else {
    ++skipped;
  }
  (void)bench.cache->close(*anew);
  if (!done) return pass(done);
  return {};
}

// False: there is no room for it.
Result<bool> Auditor::recompute(const Bench& bench, int chunk, Seq seq, std::span<const TokenId> tokens) {
  for (std::size_t at = 0; at < tokens.size();) {
    const auto some = tokens.subspan(at, std::min(static_cast<std::size_t>(chunk), tokens.size() - at));
    const auto appended = append(bench, *bench.cache, seq, some, {});
    if (appended) {
      at += some.size();
      continue;
    }
    if (appended.error().code != Code::exhausted && appended.error().code != Code::capacity) return pass(appended);
    const auto evicted = bench.prefix->evict_one();
    if (!evicted || !*evicted) return false;
  }
  return true;
}

void Auditor::compare(const Cache& cache, Seq hit, Seq anew, Pos length) {
  for (int layer = 0; layer < static_cast<int>(cache.spec().layers.size()); ++layer) {
    const auto a = cache.peek(hit, layer), b = cache.peek(anew, layer);
    if (!a || !b) continue;
    const CellLayout& layout = *a->layout;
    std::vector<double> x(static_cast<std::size_t>(std::max(layout.k_dim, layout.v_dim))), y(x.size());
    const auto same = [&](auto read, int dim, int head, Pos pos) {
      const auto n = static_cast<std::size_t>(dim);
      return read(*a, head, pos, std::span(x).first(n)) && read(*b, head, pos, std::span(y).first(n)) &&
             std::memcmp(x.data(), y.data(), n * sizeof(double)) == 0;
    };
    for (Pos pos = 0; pos < length; ++pos) {
      if (!a->has(pos) || !b->has(pos)) continue;  // evicted in the one or the other
      for (int head = 0; head < layout.kv_heads; ++head) {
        const bool keys = same(read_key, layout.k_dim, head, pos), values = same(read_value, layout.v_dim, head, pos);
        if (keys && values) continue;
        ++different;
        if (first_difference.empty()) {
          first_difference = fmt::format("layer {}, position {}, head {}: the {} found are not those computed anew",
                                         layer, pos, head, keys ? "values" : "keys");
        }
        return;
      }
    }
  }
}

}  // namespace stet::engine
