// The public face: owns what the scheduler works in.
#include "stet/engine.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/buffer.hpp"
#include "base/thread_pool.hpp"
#include "core/numerics.hpp"
#include "engine/audit.hpp"
#include "engine/cache_setup.hpp"
#include "engine/codec_check.hpp"
#include "engine/loaded.hpp"
#include "engine/scheduler.hpp"
#include "kv/identity.hpp"
#include "kv/index_snapshot.hpp"
#include "kv/prefix_index.hpp"
#include "kv/snapshot.hpp"

namespace stet {
namespace {

constexpr int kMostThreads = 1024;

// Resolves the zeros and refuses what cannot be.
Result<EngineOptions> resolve(EngineOptions o, const ModelConfig& config) {
  if (o.threads < 0 || o.threads > kMostThreads) {
    return fail(Code::invalid_argument, fmt::format("{} threads: must be 1 to {}", o.threads, kMostThreads));
  }
  if (o.threads == 0) o.threads = std::min(base::available_cpus(), kMostThreads);
  if (o.chunk < 1)
    return fail(Code::invalid_argument, fmt::format("a chunk of {} tokens: must be at least 1", o.chunk));
  if (o.max_seqs < 1) {
    return fail(Code::invalid_argument, fmt::format("{} sequences at a time: must be at least 1", o.max_seqs));
  }
  if (o.max_len < 0 || o.max_len > config.context) {
    return fail(Code::capacity,
                fmt::format("sequences of {} tokens: the model's context is {}", o.max_len, config.context));
  }
  if (o.max_len == 0) o.max_len = config.context;
  if (o.cache == CacheMode::none && o.prefix_bytes) {
    return fail(Code::invalid_argument, "a prefix cache keeps what is stored, and without a cache nothing is");
  }
  if (!(o.audit >= 0 && o.audit <= 1)) {
    return fail(Code::invalid_argument, fmt::format("an audit of {} of the hits: must be 0 to 1", o.audit));
  }
  if (o.cache != CacheMode::paged && (o.page_tokens != EngineOptions{}.page_tokens || o.pool_tokens != 0)) {
    return fail(Code::invalid_argument,
                fmt::format("pages and a pool are of a paged cache, and this one is {}", name_of(o.cache)));
  }
  // No step is longer than a full sequence for each of them.
  o.chunk = static_cast<int>(std::min<Pos>(o.chunk, o.max_len));
  return o;
}

engine::Policy policy(const EngineOptions& o) {
  return {o.chunk, o.max_seqs, o.map, o.cache == CacheMode::none};
}

Result<ModelInfo> describe(const std::string& name, const ModelConfig& c, const EngineOptions& o) {
  const auto sizes = model::sizes(c, o.dtype, engine::step_rows(policy(o)));
  auto spec = engine::with_choices(sizes.cache_spec, o);
  if (!spec) return pass(spec);
  auto plan = plan_cache(*spec, engine::cache_options(o, *spec));
  if (!plan) return pass(plan);
  ModelInfo info;
  info.name = name;
  info.family = c.family;
  info.activation = name_of(c.activation);
  info.layers = c.layers;
  info.heads = c.heads;
  info.kv_heads = c.kv_heads;
  info.head_dim = c.head_dim;
  info.width = c.width;
  info.inner = c.inner;
  info.vocab = c.vocab;
  info.context = c.context;
  info.tied_head = c.tied_head;
  info.has_tokenizer = engine::has_vocabulary(name) && (c.family == "gpt2" || Tokenizer::load(name).has_value());
  info.bos = c.bos;
  info.eos = c.eos;
  info.parameters = sizes.parameters;
  info.weight_bytes = sizes.weight_bytes;
  info.cache_bytes_per_token = plan->bytes_per_token;
  info.cache_bytes = plan->reserved;
  info.cache_codecs = engine::codec_words(*spec);
  info.scratch_bytes = sizes.workspace_bytes;
  return info;
}

}  // namespace

const char* name_of(StopReason reason) noexcept {
  switch (reason) {
    case StopReason::length:
      return "length";
    case StopReason::eos:
      return "eos";
    case StopReason::stop_string:
      return "stop_string";
    case StopReason::context:
      return "context";
    case StopReason::no_room:
      return "no_room";
    case StopReason::interrupted:
      break;
  }
  return "interrupted";
}

const char* name_of(PastLimit past_limit) noexcept {
  return past_limit == PastLimit::stop ? "stop" : "recompute";
}

struct Engine::Impl {
  EngineOptions options;
  ModelInfo info;
  engine::Loaded loaded;
  std::unique_ptr<Cache> cache;
  std::unique_ptr<base::ThreadPool> pool;
  base::Buffer workspace;
  CacheUsage peak;
  std::vector<PageInfo> peak_pages;
  std::unique_ptr<kv::PrefixIndex> prefix;  // after the cache, in which it closes what it keeps
  engine::Auditor auditor{0};

  // Reads ids into an empty sequence, chunk by chunk; logits of positions `from` and after go to `out`.
  Result<void> read(Seq seq, std::span<const TokenId> ids, std::size_t from, std::byte* out,
                    const std::function<bool()>& keep_going) {
    const std::size_t row_bytes = static_cast<std::size_t>(info.vocab) * size_of(loaded.model->dtype());
    const auto chunk = static_cast<std::size_t>(options.chunk);
    for (std::size_t at = 0; at < ids.size(); at += chunk) {
      if (keep_going && !keep_going()) return fail(Code::interrupted, "interrupted");
      const auto some = ids.subspan(at, std::min(chunk, ids.size() - at));
      std::vector<int> rows;
      for (std::size_t r = 0; r < some.size(); ++r) {
        if (at + r >= from) rows.push_back(static_cast<int>(r));
      }
      if (auto ok = engine::append(bench(), *cache, seq, some, {rows, out}); !ok) return ok;
      out += rows.size() * row_bytes;
    }
    return {};
  }

  kernels::Compute compute() const { return {pool.get(), &kernels::targets().front()}; }

  engine::Bench bench() {
    engine::Bench bench;
    bench.model = loaded.model.get();
    bench.tokenizer = loaded.tokenizer ? &*loaded.tokenizer : nullptr;
    bench.cache = cache.get();
    bench.prefix = prefix.get();
    bench.auditor = options.audit > 0 && prefix != nullptr ? &auditor : nullptr;
    bench.on = compute();
    bench.workspace = &workspace;
    return bench;
  }

  kv::Identity identity() const {
    return {loaded.model->weights_digest(), loaded.model->canonical_config(), kNumericsVersion};
  }
};

Engine::Engine(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

Result<Engine> Engine::load(const std::string& model, const EngineOptions& options,
                            const std::function<bool(double)>& progress) {
  // The plan first: a model that does not fit is refused before its weights are read.
  auto config = engine::config_of(model);
  if (!config) return pass(config);
  auto resolved = resolve(options, *config);
  if (!resolved) return pass(resolved);
  auto info = describe(model, *config, *resolved);
  if (!info) return pass(info);
  if (auto ok = check_fits(*info); !ok) return pass(ok);

  auto impl = std::make_unique<Impl>();
  impl->options = *resolved;
  impl->info = std::move(*info);
  auto loaded = engine::load(model, resolved->dtype, progress);
  if (!loaded) return pass(loaded);
  impl->loaded = std::move(*loaded);
  auto spec = engine::with_choices(impl->loaded.model->cache_spec(), *resolved);
  if (!spec) return pass(spec);
  auto cache = make_cache(*spec, engine::cache_options(*resolved, *spec));
  if (!cache) return pass(cache);
  impl->cache = std::move(*cache);
  if (resolved->prefix_bytes) {
    kv::PrefixOptions options;
    options.budget = *resolved->prefix_bytes;
    impl->prefix = std::make_unique<kv::PrefixIndex>(*impl->cache, options);
  }
  impl->auditor = engine::Auditor(resolved->audit);
  auto workspace = base::Buffer::allocate(impl->info.scratch_bytes);
  if (!workspace) return pass(workspace);
  impl->workspace = std::move(*workspace);
  impl->pool = std::make_unique<base::ThreadPool>(resolved->threads, resolved->pin);
  return Engine(std::move(impl));
}

Result<void> Engine::check_fits(const ModelInfo& info) {
  return engine::check_memory(info.name, {info.weight_bytes, info.cache_bytes, info.scratch_bytes});
}

Result<ModelInfo> Engine::inspect(const std::string& model, const EngineOptions& options) {
  auto config = engine::config_of(model);
  if (!config) return pass(config);
  auto resolved = resolve(options, *config);
  if (!resolved) return pass(resolved);
  return describe(model, *config, *resolved);
}

const ModelInfo& Engine::info() const noexcept {
  return impl_->info;
}
const EngineOptions& Engine::options() const noexcept {
  return impl_->options;
}
const Tokenizer* Engine::tokenizer() const noexcept {
  return impl_->bench().tokenizer;
}
const std::string& Engine::no_tokenizer() const noexcept {
  return impl_->loaded.no_tokenizer;
}
CacheUsage Engine::cache_usage() const noexcept {
  return impl_->peak;
}

CacheReport Engine::cache_report() const {
  CacheReport report;
  report.usage = impl_->peak;
  report.pages = impl_->peak_pages;
  const auto& auditor = impl_->auditor;
  report.audited = auditor.audited;
  report.audits_skipped = auditor.skipped;
  report.audits_different = auditor.different;
  report.first_difference = auditor.first_difference;
  if (impl_->prefix == nullptr) return report;
  for (const kv::Parked& parked : impl_->prefix->parked()) {
    report.kept.push_back({static_cast<Pos>(parked.tokens.size()), std::string(parked.salt), parked.pinned});
  }
  report.kept_bytes = impl_->prefix->bytes();
  const kv::PrefixStats& stats = impl_->prefix->stats();
  report.lookups = stats.lookups;
  report.hits = stats.hits;
  report.full_hits = stats.full_hits;
  report.tokens_asked = stats.tokens_asked;
  report.tokens_hit = stats.tokens_hit;
  report.evicted = stats.evicted;
  for (std::size_t i = 0; i < kv::kMisses; ++i) {
    if (static_cast<kv::Miss>(i) == kv::Miss::none || stats.misses[i] == 0) continue;
    report.misses.emplace_back(kv::name_of(static_cast<kv::Miss>(i)), stats.misses[i]);
  }
  return report;
}

namespace {

Failure no_prefix_cache() {
  return fail(Code::unsupported, "this engine keeps no sequences: it was loaded without a prefix cache");
}

}  // namespace

Result<std::size_t> Engine::save_cache(const std::string& path, const std::function<bool()>& keep_going) {
  if (impl_->prefix == nullptr) return no_prefix_cache();
  if (impl_->prefix->size() == 0) {
    return fail(Code::not_found, fmt::format("{}: nothing is kept that could be saved", path));
  }
  auto saved = kv::save_index(path, impl_->identity(), *impl_->cache, *impl_->prefix,
                              [&] { return keep_going && !keep_going(); });
  if (!saved) return pass(saved);
  return impl_->prefix->size();
}

Result<Engine::Restored> Engine::load_cache(const std::string& path, bool reencode) {
  if (impl_->prefix == nullptr) return no_prefix_cache();
  auto snapshot = kv::Snapshot::open(path);
  if (!snapshot) return pass(snapshot);
  auto restored = kv::restore_index(*snapshot, impl_->identity(), *impl_->cache, *impl_->prefix,
                                    reencode ? kv::Reencode::allowed : kv::Reencode::refused);
  if (!restored) return pass(restored);
  return Restored{snapshot->sequences().size(), impl_->prefix->size()};
}

Result<CodecCheck> Engine::check_codecs(std::span<const TokenId> ids) const {
  const CacheSpec& spec = impl_->cache->spec();
  if (std::none_of(spec.layers.begin(), spec.layers.end(),
                   [](const LayerSpec& l) { return has_scale(l.k) || has_scale(l.v); })) {
    return CodecCheck{};
  }
  EngineOptions plain = impl_->options;
  plain.kv.clear();
  auto wide = engine::with_choices(impl_->loaded.model->cache_spec(), plain);
  if (!wide) return pass(wide);
  return engine::check_codecs(impl_->bench(), *wide, spec, ids, impl_->options.chunk);
}

Result<std::uint64_t> Engine::pin(std::span<const TokenId> ids, const std::string& salt) {
  if (impl_->prefix == nullptr) return no_prefix_cache();
  return impl_->prefix->pin(ids, salt);
}

Result<void> Engine::unpin(std::uint64_t pin) {
  if (impl_->prefix == nullptr) return no_prefix_cache();
  return impl_->prefix->unpin(pin);
}

Result<void> Engine::check(const Request& request) const {
  return engine::check_request(request, impl_->loaded.model->config(), impl_->options.max_len,
                               impl_->loaded.tokenizer.has_value());
}

Result<std::vector<Completion>> Engine::generate(std::span<const Request> requests,
                                                 const std::function<bool(const TokenEvent&)>& on_token,
                                                 const std::function<bool()>& keep_going) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (auto ok = check(requests[i]); !ok) {
      if (requests.size() == 1) return pass(ok);
      return fail(ok.error().code, fmt::format("request {}: {}", i, ok.error().message));
    }
  }
  engine::Scheduler scheduler(impl_->bench(), policy(impl_->options), requests, on_token);
  while (!scheduler.done()) {
    if (keep_going && !keep_going()) {
      scheduler.interrupt();
      break;
    }
    if (auto ok = scheduler.step(); !ok) return pass(ok);
  }
  impl_->peak = scheduler.peak();
  impl_->peak_pages = scheduler.peak_pages();
  return scheduler.take();
}

Result<Logits> Engine::logits(std::span<const TokenId> ids, const std::function<bool()>& keep_going) {
  const ModelConfig& config = impl_->loaded.model->config();
  if (ids.empty()) return fail(Code::invalid_argument, "no token to compute logits for");
  if (static_cast<Pos>(ids.size()) > impl_->options.max_len) {
    return fail(Code::capacity,
                fmt::format("{} tokens are more than the model's context of {}", ids.size(), impl_->options.max_len));
  }
  Logits logits;
  logits.type = arithmetic_of(impl_->options.dtype);
  logits.rows = ids.size();
  logits.vocab = static_cast<std::size_t>(config.vocab);
  const std::size_t row_bytes = logits.vocab * size_of(logits.type);
  logits.data.resize(logits.rows * row_bytes);

  auto seq = engine::open_sequence(impl_->bench());
  if (!seq) return pass(seq);
  Result<void> done;
  if (impl_->options.cache != CacheMode::none) {
    done = impl_->read(*seq, ids, 0, logits.data.data(), keep_going);
  } else {
    // Every position from scratch over its whole prefix, as the loop without a cache does.
    for (std::size_t n = 1; n <= ids.size() && done; ++n) {
      (void)impl_->cache->close(*seq);
      seq = impl_->cache->open();
      if (!seq) return pass(seq);
      done = impl_->read(*seq, ids.first(n), n - 1, logits.data.data() + (n - 1) * row_bytes, keep_going);
    }
  }
  (void)impl_->cache->close(*seq);
  if (!done) return pass(done);
  return logits;
}

}  // namespace stet
