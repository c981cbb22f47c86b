#include "lab/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "lab/pairs.hpp"
#include "lab/paths.hpp"

namespace stet::lab {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Result<Outcome> by_token(const Given& g) {
  return g.path(in_chunks(g.ids, 1));
}

Spec chunks(Pos c) {
  return {fmt::format("prefill: chunks of {}", c), once,
          [c](const Given& g) { return g.path(in_chunks(g.ids, g.chunk(c)), g.damaged()); }, linear};
}

Spec threads(int t) {
  return {fmt::format("threads: 1 and {}", t), [](const Given& g) { return g.path(in_chunks(g.ids, g.chunk(32))); },
          [t](const Given& g) {
            Conditions c = g.usual();
            c.threads = t;
            return g.path(in_chunks(g.ids, g.chunk(32)), g.damaged(c));
          },
          [](const Cost& c, double n) { return 2.2 * n * c.row; }};
}

// Five sequences of different lengths, made of the pair's ids: the first is all of them.
std::vector<Ids> companions(const Given& g) {
  const Pos n = g.n();
  std::vector<Ids> all = {g.ids};
  for (const Pos len : {n / 2, n / 3, std::min<Pos>(7, n), Pos{1}}) {
    const Ids& from = all.size() % 2 == 1 ? g.others : g.ids;
    all.emplace_back(from.begin(), from.begin() + std::max<Pos>(1, len));
  }
  return all;
}

Spec batch() {
  const auto together = [](const Given& g) { return g.path(g.batching(companions(g), 5), g.damaged()); };
  const auto alone = [](const Given& g) -> Result<Outcome> {
    Outcome all;
    for (const Ids& ids : companions(g)) {
      auto one = g.path(in_chunks(ids, 5));
      if (!one) return one;
      all.elements.insert(all.elements.end(), one->elements.begin(), one->elements.end());
      all.record += fmt::format("{}{}", all.record.empty() ? "" : "; ", one->record);
    }
    return all;
  };
  return {"batch: ragged and alone", alone, together,
          [](const Cost& c, double n) { return 4 * n * (c.token + c.row); }};
}

Spec ids_made(const std::string& name, SamplingParams sampling) {
  const auto side = [sampling](bool recompute) {
    return [sampling, recompute](const Given& g) {
      const Pos prompt = std::max<Pos>(1, g.n() / 8);
      return generate(*g.loaded, Ids(g.ids.begin(), g.ids.begin() + prompt), static_cast<int>(g.n() - prompt), sampling,
                      recompute, recompute ? g.usual() : g.damaged(), g.go);
    };
  };
  return {name, side(true), side(false), quadratic, true};
}

Spec kernels_of(const kernels::Target& other, DType weights) {
  return {fmt::format("kernels: the fastest and {}", other.name_with(weights)),
          [](const Given& g) { return g.path(in_chunks(g.ids, g.chunk(32))); },
          [&other](const Given& g) {
            Conditions c = g.usual();
            c.target = &other;
            return g.path(in_chunks(g.ids, g.chunk(32)), g.damaged(c));
          },
          [](const Cost& c, double n) { return 6 * n * c.row; }};
}

}  // namespace

std::vector<Spec> all_pairs(DType weights, const kernels::Target& fastest, bool all) {
  SamplingParams sampled;
  sampled.temperature = 1;
  sampled.top_k = 40;
  sampled.top_p = 0.95;
  sampled.seed = 1;
  std::vector<Spec> specs = {
      {"cached and recomputed", [](const Given& g) { return g.path(from_scratch(g.ids)); },
       [](const Given& g) { return g.path(in_chunks(g.ids, 1), g.damaged()); }, quadratic},
      chunks(1),
      chunks(3),
      chunks(16),
      chunks(64),
      batch(),
      threads(2),
      threads(4),
      {"truncate and continue", once, [](const Given& g) { return g.path(with_detours(g.ids, g.others), g.damaged()); },
       [](const Cost& c, double n) { return 5 * linear(c, n); }},
      {"unused slots: NaN and as they come", by_token,
       [](const Given& g) {
         Conditions c = g.usual();
         c.poison = std::nullopt;
         return g.path(in_chunks(g.ids, 1), g.damaged(c));
       },
       [](const Cost& c, double n) { return 2 * n * c.token; }},
      ids_made("greedy ids: cached and recomputed", {}),
      ids_made("sampled ids: cached and recomputed", sampled),
  };
  std::string_view last = fastest.name_with(weights);
  for (const auto& target : kernels::targets()) {
    // Sets that differ only in kernels that these weights do not use would be one path twice.
    if (target.name_with(weights) != last) specs.push_back(kernels_of(target, weights));
    last = target.name_with(weights);
  }
  for (auto& spec : cache_pairs(all)) specs.push_back(std::move(spec));
  return specs;
}

namespace {

Result<Cost> measure(const Given& given) {
  Cost cost;
  Given g = given;
  const auto timed = [&](Pos n, Pos chunk) -> Result<double> {
    g.ids = Ids(given.ids.begin(), given.ids.begin() + std::min(n, given.n()));
    const auto start = Clock::now();
    auto done = g.path(in_chunks(g.ids, chunk));
    if (!done) return pass(done);
    return seconds_since(start) / static_cast<double>(g.n());
  };
  auto token = timed(2, 1);
  if (!token) return pass(token);
  auto row = timed(16, 16);
  if (!row) return pass(row);
  cost.token = *token;
  cost.row = *row;
  return cost;
}

// Shorter than this, some pairs would have one path only.
constexpr Pos kShortest = 4;

// The longest length up to `most` that a share of the budget pays for; a pair is never dropped.
Pos affordable(const Spec& spec, const Cost& cost, Pos most, double share) {
  Pos n = most;
  while (n > kShortest && spec.seconds(cost, static_cast<double>(n)) > share) --n;
  return n;
}

}  // namespace

Result<Pair> run_pair(const Spec& spec, const Given& given, DType dtype) {
  Pair pair;
  pair.name = spec.name;
  pair.dtype = dtype;
  pair.tokens = given.n();
  auto a = spec.a(given);
  if (!a) return pass(a);
  auto b = spec.b(given);
  if (!b) return pass(b);
  pair.path_a = a->record;
  pair.path_b = b->record;
  const std::size_t bytes = spec.ids ? sizeof(TokenId) : size_of(arithmetic_of(dtype));
  pair.compared = std::min(a->elements.size(), b->elements.size()) / bytes;
  const Difference d = compare_bits(a->elements, b->elements, spec.ids ? DType::f32 : arithmetic_of(dtype));
  pair.differing = d.differing;
  pair.max_ulp = spec.ids ? 0 : d.max_ulp;
  if (pair.path_a == pair.path_b) pair.note = "both sides took the same path, so nothing was shown";
  return pair;
}

Result<Plant> parse_plant(std::string_view name) {
  if (name == "flip-bit") return Plant::flip_bit;
  if (name == "stale-row") return Plant::stale_row;
  return fail(Code::invalid_argument, fmt::format("no fault is called \"{}\": there are flip-bit and stale-row", name));
}

Result<void> verify_loaded(const engine::Loaded& loaded, const VerifyOptions& options, double budget_seconds,
                           const VerifyCallbacks& callbacks, VerifyReport& report, const kernels::Target& target) {
  const ModelConfig& config = loaded.model->config();
  const Pos wanted = options.tokens > 0 ? options.tokens : std::min<Pos>(config.context, 128);
  if (wanted < kShortest || wanted > config.context) {
    return fail(Code::invalid_argument, fmt::format("sequences of {} tokens: must be {} to the model's context of {}",
                                                    wanted, kShortest, config.context));
  }
  const Ids ids = random_ids(config, wanted, options.seed, 0), others = random_ids(config, wanted, options.seed, 1);
  const auto given = [&](Pos n) {
    return Given{&loaded,
                 Ids(ids.begin(), ids.begin() + n),
                 Ids(others.begin(), others.begin() + n),
                 options.plant ? planted(*options.plant, n / 2) : Wrap{},
                 callbacks.keep_going,
                 &target,
                 ragged,
                 true};
  };
  const auto start = Clock::now();
  auto cost = measure(given(wanted));
  if (!cost) return pass(cost);

  const auto specs = all_pairs(loaded.model->weights(), target, options.all);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    Pos n = wanted;
    if (budget_seconds > 0) {
      const double share = (budget_seconds - seconds_since(start)) / static_cast<double>(specs.size() - i);
      n = affordable(specs[i], *cost, wanted, share);
    }
    if (callbacks.on_progress) {
      callbacks.on_progress(fmt::format("{} ({}, {} tokens)", specs[i].name, name_of(loaded.model->weights()), n));
    }
    auto pair = run_pair(specs[i], given(n), loaded.model->weights());
    if (!pair) return pass(pair);
    if (n < wanted)
      pair->note += fmt::format("{}{} of {} tokens, for the budget", pair->note.empty() ? "" : "; ", n, wanted);
    if (callbacks.on_pair) callbacks.on_pair(*pair);
    report.pairs.push_back(std::move(*pair));
  }
  return {};
}

Result<VerifyReport> verify(const VerifyOptions& options, const VerifyCallbacks& callbacks) {
  VerifyReport report;
  for (const DType dtype : options.dtypes) {
    const auto start = Clock::now();
    auto loaded =
        engine::load(options.model, dtype, [&](double) { return !callbacks.keep_going || callbacks.keep_going(); });
    if (!loaded) return pass(loaded);
    double budget = options.budget_seconds / static_cast<double>(options.dtypes.size());
    // Loading counts, but what is left must not turn into "no budget".
    if (budget > 0) budget = std::max(0.001, budget - seconds_since(start));
    if (auto ok = verify_loaded(*loaded, options, budget, callbacks, report); !ok) return pass(ok);
  }
  report.equal =
      std::any_of(report.pairs.begin(), report.pairs.end(), [](const Pair& p) { return !p.skipped; }) &&
      std::all_of(report.pairs.begin(), report.pairs.end(), [](const Pair& p) { return p.skipped || p.equal(); });
  return report;
}

}  // namespace stet::lab
