#include "lab/bill.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "engine/cache_setup.hpp"
#include "kv/plan.hpp"
#include "kv/sizes.hpp"

namespace stet::lab {
namespace {

// Far beyond any context, and within what a sequence's cells can be numbered for.
constexpr Pos kLongest = Pos{1} << 35;

/// The largest n of [0, limit] with holds(n), which is true up to some n and false from there; 0 when it never is.
template <class N, class F>
N last_that(N limit, F holds) {
  N low = 0, high = 1;
  while (high < limit && holds(high)) {
    low = high;
    high = high > limit / 2 ? limit : high * 2;
  }
  if (high == limit && holds(high)) return limit;
  while (high - low > 1) {
    const N middle = low + (high - low) / 2;
    (holds(middle) ? low : high) = middle;
  }
  return low;
}

/// Positions that the query at position `tokens` - 1 sees.
Pos seen(const Span& span, Pos tokens) {
  return span.window > 0 ? std::min(tokens, span.window + span.sinks) : tokens;
}

/// A cache's codecs and layout as the engine would ask for them, and their plans.
struct Source {
  EngineOptions options;
  CacheSpec spec;

  bool evicts() const { return options.cache == CacheMode::contiguous || options.cache == CacheMode::paged; }
  CacheOptions at(Pos context, int batch) const {
    EngineOptions o = options;
    o.max_len = context;
    o.max_seqs = batch;
    return engine::cache_options(o, spec);
  }
  Result<CachePlan> plan(Pos context, int batch) const { return plan_cache(spec, at(context, batch)); }

  std::size_t row_bytes(const LayerSpec& layer) const {
    CacheOptions one;
    one.max_len = 1;
    const auto plan = plan_cache({{layer}}, one);
    return plan ? plan->bytes_per_token : 0;
  }
  /// Stored rows of one sequence.
  double rows(Pos context) const {
    double bytes = 0;
    for (std::size_t i = 0; i < spec.layers.size(); ++i) {
      const Pos tokens = evicts() ? seen(spec.layers[i].span, context) : context;
      bytes += static_cast<double>(tokens) * static_cast<double>(layer_rows[i]);
    }
    return bytes;
  }

  std::vector<std::size_t> layer_rows;  // row_bytes of each layer
};

Result<Source> source_of(const Shape& model, const BillOptions& options, const std::vector<KvCodecs>& kv,
                         CacheMode layout) {
  Source source;
  source.options.dtype = model.dtype;
  source.options.cache = layout;
  source.options.kv = kv;
  source.options.span = options.span;
  if (layout == CacheMode::paged) {
    source.options.page_tokens = options.page_tokens;
    source.options.pool_tokens = options.pool_tokens;
  }
  auto spec = engine::with_choices(model.cache, source.options);
  if (!spec) return pass(spec);
  source.spec = std::move(*spec);
  for (std::size_t i = 0; i < source.spec.layers.size(); ++i) {
    const auto& layers = source.spec.layers;
    source.layer_rows.push_back(i > 0 && layers[i] == layers[i - 1] ? source.layer_rows.back()
                                                                    : source.row_bytes(layers[i]));
  }
  return source;
}

/// "f16", or by layers "0-1 f32, 2-11 int8".
std::string codec_words(const CacheSpec& spec, Codec LayerSpec::*codec) {
  CacheSpec one = spec;
  for (LayerSpec& layer : one.layers) layer.k = layer.v = layer.*codec;
  const std::string words = engine::codec_words(one);
  constexpr std::string_view kLayers = "layers ";
  return words.starts_with(kLayers) ? words.substr(kLayers.size()) : words;
}

Result<BillRow> row_of(const Shape& model, const Source& source, std::size_t cache, Pos context, int batch) {
  const auto plan = source.plan(context, batch);
  if (!plan) return pass(plan);
  BillRow row;
  row.context = context;
  row.batch = batch;
  row.cache = cache;
  row.per_token = plan->bytes_per_token;
  for (std::size_t i = 0; i < source.spec.layers.size(); ++i) {
    const Pos tokens = source.evicts() ? seen(source.spec.layers[i].span, context) : context;
    row.rows = kv::add(row.rows, kv::multiply(static_cast<std::size_t>(tokens), source.layer_rows[i]));
  }
  row.rows = kv::multiply(row.rows, static_cast<std::size_t>(batch));
  row.per_sequence = plan->bytes_per_sequence;
  row.cells = kv::count(source.spec, source.at(context, batch)).storage;
  row.total = plan->reserved;
  row.past_context = context > model.context;
  return row;
}

Crossing passes_weights(const Shape& model, const Source& source, std::size_t cache, int batch) {
  const auto below = [&](Pos tokens) { return source.rows(tokens) * batch <= static_cast<double>(model.weight_bytes); };
  const Pos tokens = last_that(kLongest, below);
  return {cache, batch, tokens == kLongest ? std::nullopt : std::optional(tokens)};
}

std::optional<Pos> attention_equals(const Shape& model, const CacheSpec& spec, double work) {
  const auto below = [&](Pos tokens) {
    double attention = 0;
    for (std::size_t i = 0; i < spec.layers.size(); ++i) {
      attention += static_cast<double>(seen(spec.layers[i].span, tokens)) * model.attend_work[i];
    }
    return attention <= work;
  };
  const Pos tokens = last_that(kLongest, below);
  return tokens == kLongest ? std::nullopt : std::optional(tokens);
}

Fit fit_of(const Shape& model, const Source& source, Fit fit) {
  const auto fits = [&](Pos context, int batch) {
    const auto plan = source.plan(context, batch);
    return plan && plan->reserved <= fit.room - model.weight_bytes;
  };
  constexpr int kMostBatch = std::numeric_limits<int>::max();
  if (model.weight_bytes > fit.room) return fit;
  if (fit.asks_context) {
    fit.context = last_that(kLongest, [&](Pos context) { return fits(context, fit.batch); });
    fit.any = fit.context == kLongest;
  } else {
    fit.batch = last_that(kMostBatch, [&](int batch) { return fits(fit.context, batch); });
  }
  fit.past_context = fit.context > model.context;
  return fit;
}

/// Two points an octave, from a corner of the smallest rows to beyond all that is of interest.
std::vector<Pos> curve_contexts(const Bill& bill, const std::vector<Pos>& contexts) {
  constexpr Pos kFarthest = Pos{1} << 22;
  Pos last = std::max(bill.model.context, *std::max_element(contexts.begin(), contexts.end()));
  for (const Crossing& crossing : bill.passes_weights) {
    if (crossing.tokens) last = std::max(last, std::min(*crossing.tokens * 2, kFarthest));
  }
  std::vector<Pos> points;
  for (Pos at = last >= 8192 ? 256 : 16; at < last; at *= 2) {
    points.push_back(at);
    if (at + at / 2 < last) points.push_back(at + at / 2);
  }
  points.push_back(last);
  return points;
}

Windows windows_of(const CacheSpec& spec) {
  Windows windows;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.span.window == 0) continue;
    ++windows.layers;
    if (layer.span.window + layer.span.sinks <= windows.longest) continue;
    windows.longest = layer.span.window + layer.span.sinks;
    windows.sinks = layer.span.sinks;
  }
  return windows;
}

Result<void> check(const BillOptions& options) {
  for (const Pos context : options.contexts) {
    if (context < 1) return fail(Code::invalid_argument, fmt::format("a context of {} tokens: at least 1", context));
  }
  for (const int batch : options.batches) {
    if (batch < 1) return fail(Code::invalid_argument, fmt::format("a batch of {} sequences: at least 1", batch));
  }
  if (options.batches.empty() || options.caches.empty() || options.layouts.empty()) {
    return fail(Code::invalid_argument, "a bill without a batch, a cache or a layout");
  }
  const bool paged =
      std::find(options.layouts.begin(), options.layouts.end(), CacheMode::paged) != options.layouts.end();
  if (!paged && (options.page_tokens != EngineOptions{}.page_tokens || options.pool_tokens != 0)) {
    return fail(Code::invalid_argument, fmt::format("pages and a pool are of a paged cache, and this one is {}",
                                                    name_of(options.layouts.front())));
  }
  return {};
}

/// Everything of one codec and layout.
Result<void> add_cache(Bill& bill, const Source& source, const BillOptions& options, const std::vector<Pos>& contexts) {
  const std::size_t cache = bill.caches.size();
  bill.caches.push_back(
      {codec_words(source.spec, &LayerSpec::k), codec_words(source.spec, &LayerSpec::v), source.options.cache});
  for (const int batch : options.batches) {
    for (const Pos context : contexts) {
      auto row = row_of(bill.model, source, cache, context, batch);
      if (!row) return pass(row);
      bill.rows.push_back(*row);
    }
    bill.passes_weights.push_back(passes_weights(bill.model, source, cache, batch));
  }
  for (const std::size_t room : options.rooms) {
    for (const int batch : options.batches) {
      bill.fits.push_back(fit_of(bill.model, source, {room, cache, true, 0, batch, false, false}));
    }
    for (const Pos context : contexts) {
      bill.fits.push_back(fit_of(bill.model, source, {room, cache, false, context, 0, false, false}));
    }
  }
  return {};
}

}  // namespace

Result<Bill> bill(const Shape& model, const BillOptions& options) {
  if (auto ok = check(options); !ok) return pass(ok);
  const auto contexts = options.contexts.empty() ? std::vector<Pos>{model.context} : options.contexts;
  Bill bill;
  bill.model = model;
  std::vector<Source> sources;
  for (const auto& kv : options.caches) {
    for (const CacheMode layout : options.layouts) {
      auto source = source_of(model, options, kv, layout);
      if (!source) return pass(source);
      if (auto ok = add_cache(bill, *source, options, contexts); !ok) return pass(ok);
      sources.push_back(std::move(*source));
    }
  }
  const CacheSpec& spec = sources.front().spec;
  bill.attention_layers = attention_equals(model, spec, model.layer_work);
  bill.attention_with_head = attention_equals(model, spec, model.layer_work + model.head_work);
  bill.windows = windows_of(spec);
  bill.curve_contexts = curve_contexts(bill, contexts);
  for (std::size_t cache = 0; cache < sources.size(); ++cache) {
    bill.curves.emplace_back();
    for (const Pos context : bill.curve_contexts) {
      auto row = row_of(model, sources[cache], cache, context, options.batches.front());
      if (row) bill.curves.back().push_back(*row);
    }
  }
  return bill;
}

}  // namespace stet::lab
