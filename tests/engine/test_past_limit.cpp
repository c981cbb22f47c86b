// PastLimit::recompute: every token past the limit is the one of a fresh forward of the last tokens, to the bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "engine/loaded.hpp"
#include "engine/scheduler.hpp"
#include "sample/sampler.hpp"
#include "stet/engine.hpp"

namespace stet {
namespace {

constexpr Pos kLimit = 24;
const char* const kGpt2 = "random:char,layers=2,width=32,heads=4,ctx=24";
const char* const kLlama = "random:llama-tiny,ctx=24";

// Passes everything on and keeps the logits that it was asked for.
class Recorder final : public model::Model {
 public:
  explicit Recorder(const model::Model& inner) : inner_(inner) {}
  const ModelConfig& config() const noexcept override { return inner_.config(); }
  DType dtype() const noexcept override { return inner_.dtype(); }
  DType weights() const noexcept override { return inner_.weights(); }
  CacheSpec cache_spec() const override { return inner_.cache_spec(); }
  std::size_t weight_bytes() const noexcept override { return inner_.weight_bytes(); }
  std::size_t workspace_bytes(int rows) const noexcept override { return inner_.workspace_bytes(rows); }
  Result<void> forward(const kernels::Compute& on, Step& step, std::span<const TokenId> ids, model::LogitsOut out,
                       base::Buffer& workspace) const override {
    auto done = inner_.forward(on, step, ids, out, workspace);
    if (done && !out.rows.empty()) {
      const std::size_t bytes = out.rows.size() * static_cast<std::size_t>(config().vocab) * sizeof(float);
      rows.emplace_back(out.data, out.data + bytes);
    }
    return done;
  }
  mutable std::vector<std::vector<std::byte>> rows;

 private:
  void hash_weights(base::Hasher&) const override {}
  const model::Model& inner_;
};

struct Made {
  std::vector<TokenId> ids;
  std::vector<std::vector<std::byte>> logits;  // of each new token
  int past_limit = 0;
};

struct How {
  Layout layout = Layout::contiguous;
  int chunk = 256;
  bool recompute = false;  // no cache at all
};

Request request(int prompt, int n, int seed = 0) {
  Request r;
  for (int i = 0; i < prompt; ++i) r.prompt.push_back((i * 7 + seed * 31 + 3) % 60);
  r.max_new = n;
  r.ignore_eos = true;
  r.past_limit = PastLimit::recompute;
  r.sampling.temperature = 1;
  r.sampling.seed = 4;
  return r;
}

base::Buffer workspace_of(const model::Model& model, int rows) {
  return std::move(*base::Buffer::allocate(model.workspace_bytes(rows)));
}

// By the engine's step loop.
Made made_by_engine(const model::Model& model, const Request& r, const How& how) {
  const Recorder recorder(model);
  CacheOptions options;
  options.layout = how.layout;
  options.max_len = kLimit;
  options.poison = std::numeric_limits<double>::quiet_NaN();
  auto cache = *make_cache(model.cache_spec(), options);
  engine::Policy policy;
  policy.chunk = how.chunk;
  policy.recompute = how.recompute;
  base::Buffer workspace = workspace_of(model, engine::step_rows(policy));
  base::ThreadPool pool(1);
  engine::Bench bench;
  bench.model = &recorder;
  bench.cache = cache.get();
  bench.on = {&pool, &kernels::targets().front()};
  bench.workspace = &workspace;
  engine::Scheduler scheduler(bench, policy, {&r, 1}, {});
  while (!scheduler.done()) {
    if (auto ok = scheduler.step(); !ok) throw std::runtime_error(ok.error().message);
  }
  const Completion completion = scheduler.take().front();
  EXPECT_EQ(cache->usage().seqs, 0);
  return {completion.ids, recorder.rows, completion.past_limit};
}

// By hand: an empty cache for every token, and the last `window` tokens in one step.
Made made_by_hand(const model::Model& model, const Request& r, Pos window) {
  Made made;
  std::vector<TokenId> tokens = r.prompt;
  const auto vocab = static_cast<std::size_t>(model.config().vocab);
  base::Buffer workspace = workspace_of(model, static_cast<int>(kLimit));
  base::ThreadPool pool(1);
  CacheOptions options;
  options.max_len = kLimit;
  for (int t = 0; t < r.max_new; ++t) {
    const auto n = std::min(static_cast<Pos>(tokens.size()), window);
    auto cache = *make_cache(model.cache_spec(), options);
    const Append append{*cache->open(), static_cast<int>(n)};
    auto step = *cache->begin({&append, 1});
    std::vector<float> logits(vocab);
    const int row = static_cast<int>(n) - 1;
    const auto last = std::span(tokens).last(static_cast<std::size_t>(n));
    const auto done = model.forward({&pool, &kernels::targets().front()}, *step, last,
                                    {{&row, 1}, reinterpret_cast<std::byte*>(logits.data())}, workspace);
    if (!done) throw std::runtime_error(done.error().message);
    const auto* bytes = reinterpret_cast<const std::byte*>(logits.data());
    made.logits.emplace_back(bytes, bytes + vocab * sizeof(float));
    made.ids.push_back(*sample::sample(std::span<const float>(logits), tokens, r.sampling, r.sequence,
                                       static_cast<Pos>(tokens.size())));
    tokens.push_back(made.ids.back());
  }
  return made;
}

bool equal(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

class PastTheLimit : public testing::TestWithParam<const char*> {};

TEST_P(PastTheLimit, EveryTokenIsThatOfAFreshForwardOfTheLastTokens) {
  const auto loaded = *engine::load(GetParam(), DType::f32);
  for (const int prompt : {3, 23, 24, 25, 70}) {
    const Request r = request(prompt, 60);
    const Made expected = made_by_hand(*loaded.model, r, kLimit);
    for (const How& how : {How{}, How{Layout::growing, 7}, How{Layout::paged, 256}, How{Layout::contiguous, 5, true}}) {
      const Made made = made_by_engine(*loaded.model, r, how);
      EXPECT_EQ(made.ids, expected.ids) << prompt;
      ASSERT_EQ(made.logits.size(), expected.logits.size());
      for (std::size_t t = 0; t < made.logits.size(); ++t) {
        EXPECT_TRUE(equal(made.logits[t], expected.logits[t])) << prompt << ", token " << t;
      }
      // The new token behind W tokens is the last that needs no window.
      EXPECT_EQ(made.past_limit, std::min<Pos>(60, prompt + 60 - kLimit - 1)) << prompt;
    }
  }
}

// The comparison can fail: a window that is one token shorter gives other logits, from the first token past it on.
TEST_P(PastTheLimit, AnotherWindowWouldBeSeen) {
  const auto loaded = *engine::load(GetParam(), DType::f32);
  const Request r = request(3, 60);
  const Made made = made_by_engine(*loaded.model, r, {}), other = made_by_hand(*loaded.model, r, kLimit - 1);
  EXPECT_NE(made.ids, other.ids);
  EXPECT_TRUE(equal(made.logits[20], other.logits[20]));
  EXPECT_FALSE(equal(made.logits[21], other.logits[21]));
}

INSTANTIATE_TEST_SUITE_P(Models, PastTheLimit, testing::Values(kGpt2, kLlama),
                         [](const auto& info) { return std::string(info.index == 0 ? "Gpt2" : "Llama"); });

Engine load(EngineOptions options) {
  options.poison = true;
  options.threads = 1;
  return std::move(*Engine::load(kGpt2, options));
}

TEST(PastLimit, BatchesPoolsAndPrefixesChangeNothing) {
  std::vector<Request> requests;
  for (int i = 0; i < 5; ++i) requests.push_back(request(5 + 11 * i, 40, i));
  const auto loaded = *engine::load(kGpt2, DType::f32);
  EngineOptions batch;
  batch.max_seqs = 5;
  batch.chunk = 9;
  EngineOptions pool = batch;
  pool.cache = CacheMode::paged;
  pool.pool_tokens = 64;  // for two sequences
  EngineOptions prefix = pool;
  prefix.prefix_bytes = std::size_t{1} << 30;
  for (const EngineOptions& options : {batch, pool, prefix}) {
    Engine engine = load(options);
    for (int again = 0; again < 2; ++again) {
      const auto made = engine.generate(requests);
      ASSERT_TRUE(made) << made.error().message;
      for (std::size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ((*made)[i].ids, made_by_hand(*loaded.model, requests[i], kLimit).ids) << i;
        EXPECT_EQ((*made)[i].reason, StopReason::length);
      }
    }
  }
}

// What is kept of a text past the limit are the rows of its last window, and a prompt that begins like it finds them.
TEST(PastLimit, TheLastWindowIsFoundAgain) {
  EngineOptions options;
  options.cache = CacheMode::paged;
  options.prefix_bytes = std::size_t{1} << 30;
  options.max_seqs = 2;
  options.audit = 1;
  Engine engine = load(options);
  const Request first = request(3, 60);
  const auto made = engine.generate({&first, 1})->front();
  std::vector<TokenId> all = first.prompt;
  all.insert(all.end(), made.ids.begin(), made.ids.end() - 1);  // the last was never read
  Request second = request(1, 10);
  second.prompt.assign(all.end() - kLimit, all.end() - 4);
  const auto again = engine.generate({&second, 1})->front();
  EXPECT_EQ(again.cached_tokens, static_cast<Pos>(second.prompt.size()) - 1);
  EXPECT_EQ(engine.cache_report().audited, 1U);
  EXPECT_EQ(engine.cache_report().audits_different, 0U);
  Engine plain = load({});
  EXPECT_EQ(again.ids, plain.generate({&second, 1})->front().ids);
}

TEST(PastLimit, StopIsAsBefore) {
  Engine engine = load({});
  Request r = request(3, 60);
  r.past_limit = PastLimit::stop;
  const auto made = engine.generate({&r, 1})->front();
  EXPECT_EQ(made.reason, StopReason::context);
  EXPECT_EQ(made.ids.size(), 21U);
  EXPECT_EQ(made.past_limit, 0);
  r = request(24, 1);
  EXPECT_TRUE(engine.check(r));
  r.past_limit = PastLimit::stop;
  EXPECT_THAT(engine.check(r).error().message, testing::HasSubstr("24 tokens, but must have fewer than the 24"));
}

// Tokens with more than the window before them, from the numbers of tokens alone.
int past_of(const Request& r, const Completion& completion) {
  const auto made = static_cast<Pos>(completion.ids.size()), prompt = static_cast<Pos>(r.prompt.size());
  return static_cast<int>(std::clamp<Pos>(prompt + made - 1 - kLimit, 0, made));
}

TEST(PastLimit, OnlyTokensThatAreThereAreCounted) {
  Engine engine = load({});
  for (const int prompt : {3, 24, 25, 70}) {
    for (const int n : {0, 1, 2, 30}) {
      const Request r = request(prompt, n);
      const auto made = engine.generate({&r, 1})->front();
      EXPECT_EQ(made.ids.size(), static_cast<std::size_t>(n));
      EXPECT_EQ(made.past_limit, past_of(r, made)) << prompt << ", " << n;
    }
  }
}

// The token of the interruption is the last of its text; the other text of the batch has been past the limit too.
TEST(PastLimit, AnInterruptedTextCountsWhatItHas) {
  EngineOptions options;
  options.max_seqs = 2;
  Engine engine = load(options);
  const std::vector<Request> requests = {request(30, 40, 0), request(31, 40, 1)};
  for (const std::size_t end : {0, 1, 10, 11}) {
    std::size_t made = 0;
    const auto completions =
        engine.generate(requests, [&](const TokenEvent& event) { return !event.id || made++ < end; });
    ASSERT_TRUE(completions) << completions.error().message;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const Completion& completion = (*completions)[i];
      EXPECT_EQ(completion.reason, StopReason::interrupted);
      EXPECT_EQ(completion.past_limit, past_of(requests[i], completion)) << end << ", " << i;
    }
  }
}

TEST(PastLimit, ATextThatAStopStringEndsCountsWhatItHas) {
  EngineOptions options;
  options.max_len = kLimit;
  options.threads = 1;
  Engine engine = std::move(*Engine::load(STET_SOURCE_DIR "/models/shakespeare-char", options));
  Request r = request(30, 40);
  const auto whole = engine.generate({&r, 1})->front();
  EXPECT_EQ(whole.past_limit, 40);
  ASSERT_GT(whole.text.size(), 12U);
  r.stop = {whole.text.substr(10, 2)};
  const auto made = engine.generate({&r, 1})->front();
  EXPECT_EQ(made.reason, StopReason::stop_string);
  EXPECT_LT(made.ids.size(), 40U);
  EXPECT_EQ(made.past_limit, past_of(r, made));
}

}  // namespace
}  // namespace stet
