// What the engine does with its cache beyond storing rows: too little room, prefixes found again, audits, files.
// Nothing of it may change a bit of what is generated.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

#include "engine/audit.hpp"
#include "engine/loaded.hpp"
#include "engine/scheduler.hpp"
#include "kv/prefix_index.hpp"
#include "stet/engine.hpp"

namespace stet {
namespace {

using testing::HasSubstr;

const std::string kModel = "random:llama-tiny,ctx=200";

Engine load(EngineOptions options, const std::string& model = kModel) {
  options.poison = true;
  options.threads = 1;
  auto engine = Engine::load(model, options);
  if (!engine) throw std::runtime_error(engine.error().message);
  return std::move(*engine);
}

EngineOptions paged(Pos pool = 0, int max_seqs = 1) {
  EngineOptions options;
  options.cache = CacheMode::paged;
  options.pool_tokens = pool;
  options.max_seqs = max_seqs;
  return options;
}

Request request(int prompt, int n, int seed) {
  Request r;
  for (int i = 0; i < prompt; ++i) r.prompt.push_back((i * 7 + seed * 31) % 60);
  r.max_new = n;
  r.ignore_eos = true;
  r.sampling.temperature = 1;
  r.sampling.seed = static_cast<std::uint64_t>(seed);
  return r;
}

std::vector<Completion> run(Engine& engine, const std::vector<Request>& requests) {
  auto made = engine.generate(requests);
  if (!made) throw std::runtime_error(made.error().message);
  return std::move(*made);
}

Completion run(Engine& engine, const Request& request) {
  return run(engine, std::vector<Request>{request}).front();
}

// One alone, in a cache with all the room there is.
std::vector<TokenId> alone(const Request& request) {
  Engine engine = load({});
  return run(engine, request).ids;
}

TEST(CacheUse, EightPromptsInAPoolForThreeAreAllAnswered) {
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) requests.push_back(request(20 + 9 * i, 40, i));
  Engine engine = load(paged(360, 8));  // three of at most 83 + 40 tokens
  int preempted = 0;
  const auto made = run(engine, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(made[i].ids, alone(requests[i])) << i;
    EXPECT_EQ(made[i].reason, StopReason::length);
    preempted += made[i].preempted;
  }
  EXPECT_GT(preempted, 0) << "the pool was large enough, so nothing was shown";
  EXPECT_LE(engine.cache_usage().tokens, 368);
}

TEST(CacheUse, OnlyWhatCanNeverFitFailsByName) {
  std::vector<Request> requests = {request(30, 10, 1), request(150, 10, 2), request(60, 100, 3), request(20, 20, 4)};
  Engine engine = load(paged(100, 4));
  const auto made = run(engine, requests);
  EXPECT_EQ(made[0].ids, alone(requests[0]));
  EXPECT_EQ(made[3].ids, alone(requests[3]));
  EXPECT_EQ(made[1].reason, StopReason::no_room);
  EXPECT_TRUE(made[1].ids.empty());
  EXPECT_THAT(made[1].error, HasSubstr("needs 10 pages of layer 0 but the pool has 7"));
  // The one that grew too long keeps what it made.
  EXPECT_EQ(made[2].reason, StopReason::no_room);
  const auto whole = alone(requests[2]);
  ASSERT_GT(made[2].ids.size(), 40U);
  EXPECT_TRUE(std::equal(made[2].ids.begin(), made[2].ids.end(), whole.begin()));
  // Every page came back.
  const auto again = run(engine, std::vector<Request>{requests[0], requests[3]});
  EXPECT_EQ(again[0].ids, made[0].ids);
}

TEST(CacheUse, APromptThatWasSeenIsFoundAndChangesNothing) {
  for (EngineOptions options : {paged(), EngineOptions{}}) {
    options.prefix_bytes = std::size_t{64} << 20;
    Engine engine = load(options);
    const Request first = request(70, 20, 1);
    EXPECT_EQ(run(engine, first).ids, alone(first));
    const Completion again = run(engine, first);
    EXPECT_EQ(again.ids, alone(first));
    EXPECT_EQ(again.cached_tokens, 69);
    EXPECT_EQ(again.miss, "");
    Request longer = first;
    for (int i = 0; i < 9; ++i) longer.prompt.push_back(60 - i);
    const Completion more = run(engine, longer);
    EXPECT_EQ(more.ids, alone(longer));
    EXPECT_EQ(more.cached_tokens, 70);
    EXPECT_EQ(more.miss, "never_seen");
    Request salted = first;
    salted.salt = "tenant b";
    const Completion other = run(engine, salted);
    EXPECT_EQ(other.ids, alone(first));
    EXPECT_EQ(other.cached_tokens, 0);
    EXPECT_EQ(other.miss, "different_salt");
    const CacheReport report = engine.cache_report();
    EXPECT_EQ(report.lookups, 4U);
    EXPECT_EQ(report.hits, 2U);
    EXPECT_EQ(report.full_hits, 1U);
  }
}

TEST(CacheUse, PrefixesGiveWayToWhatRuns) {
  EngineOptions options = paged(130);
  options.prefix_bytes = std::size_t{64} << 20;
  Engine engine = load(options);
  for (int i = 0; i < 6; ++i) {
    const Request r = request(90, 20, i);
    const Completion made = run(engine, r);
    EXPECT_EQ(made.ids, alone(r)) << i;
    EXPECT_EQ(made.preempted, 0);
  }
  EXPECT_GT(engine.cache_report().evicted, 0U);
  const Completion evicted = run(engine, request(90, 20, 0));
  EXPECT_EQ(evicted.cached_tokens, 0);
  EXPECT_EQ(evicted.miss, "evicted");
}

TEST(CacheUse, PinnedPrefixesStay) {
  EngineOptions options = paged(300);
  options.prefix_bytes = std::size_t{64} << 20;
  Engine engine = load(options);
  const Request kept = request(64, 1, 0);
  (void)run(engine, kept);
  const auto pin = engine.pin(kept.prompt);
  ASSERT_TRUE(pin) << pin.error().message;
  for (int i = 1; i < 6; ++i) (void)run(engine, request(120, 20, i));
  EXPECT_EQ(run(engine, kept).cached_tokens, 63);
  EXPECT_TRUE(engine.unpin(*pin));
  EXPECT_FALSE(engine.unpin(*pin));
  EXPECT_FALSE(engine.pin(request(10, 1, 99).prompt));
}

TEST(CacheUse, AuditsFindARowThatIsNotWhatItStandsFor) {
  const auto loaded = *engine::load("random:llama-tiny,ctx=100", DType::f32);
  CacheOptions options;
  options.layout = Layout::paged;
  options.max_len = 100;
  options.max_seqs = 4;
  auto cache = *make_cache(loaded.model->cache_spec(), options);
  kv::PrefixIndex index(*cache);
  base::ThreadPool pool(1);
  const engine::Policy policy{.chunk = 16, .max_seqs = 1};
  auto workspace = *base::Buffer::allocate(loaded.model->workspace_bytes(engine::step_rows(policy)));
  engine::Auditor auditor(0.5);
  engine::Bench bench;
  bench.model = loaded.model.get();
  bench.cache = cache.get();
  bench.prefix = &index;
  bench.auditor = &auditor;
  bench.on = {&pool, &kernels::targets().front()};
  bench.workspace = &workspace;
  const Request r = request(50, 5, 1);
  const auto go = [&] {
    engine::Scheduler scheduler(bench, policy, {&r, 1}, {});
    while (!scheduler.done()) ASSERT_TRUE(scheduler.step());
  };
  for (int i = 0; i < 5; ++i) go();
  EXPECT_EQ(auditor.audited, 2U) << "half of four hits";
  EXPECT_EQ(auditor.different, 0U) << auditor.first_difference;
  // One bit of a stored key, of position 20 in layer 1, flips under every sequence that shares the page.
  const auto parked = index.parked();
  ASSERT_FALSE(parked.empty());
  const auto view = cache->peek(parked.front().seq, 1);
  auto* cell = const_cast<std::byte*>(view->cell(20 / kCell));
  cell[static_cast<std::size_t>(20 % kCell) * sizeof(float)] ^= std::byte{1};
  go();
  go();
  EXPECT_EQ(auditor.audited, 3U);
  EXPECT_EQ(auditor.different, 1U);
  EXPECT_THAT(auditor.first_difference, HasSubstr("layer 1, position 20"));
}

TEST(CacheUse, PoorCodecsAreNoticedAndGoodOnesAreNot) {
  const std::vector<TokenId> prompt = {70, 105, 114, 115, 116, 32, 67, 105, 116, 105, 122, 101, 110, 58, 10};
  const std::string trained = STET_SOURCE_DIR "/models/shakespeare-char";
  const auto check = [&](std::vector<KvCodecs> kv, std::optional<Span> span = std::nullopt) {
    EngineOptions options;
    options.kv = std::move(kv);
    options.span = span;
    options.chunk = 5;
    return *load(options, trained).check_codecs(prompt);
  };
  EXPECT_EQ(check({}).positions, 0);
  EXPECT_EQ(check({{Codec::bf16, Codec::bf16}}).positions, 0);
  const CodecCheck int8 = check({{Codec::int8, Codec::int8}});
  EXPECT_EQ(int8.positions, 32) << "a short prompt is continued";
  EXPECT_FALSE(int8.poor()) << int8.same;
  EXPECT_EQ(check({{Codec::int8, Codec::int8}}, Span{9, 1}).positions, 32);
  CodecCheck poor;
  poor.positions = 100;
  poor.same = 89;
  EXPECT_TRUE(poor.poor());
  poor.same = 90;
  EXPECT_FALSE(poor.poor());
}

class Files : public testing::Test {
 protected:
  Files() { std::filesystem::create_directories(folder_); }
  ~Files() override { std::filesystem::remove_all(folder_); }
  std::string file(const char* name) const { return (folder_ / name).string(); }
  static std::string bytes(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  // Tests run side by side.
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("stet_cache_use_" + std::to_string(::getpid()));
};

EngineOptions keeping(CacheMode mode) {
  EngineOptions options;
  options.cache = mode;
  if (mode == CacheMode::paged) options.page_tokens = 32;
  options.prefix_bytes = std::numeric_limits<std::size_t>::max();
  return options;
}

TEST_F(Files, ASavedCacheGoesOnInAnyLayoutAsIfItHadNeverStopped) {
  Request r = request(60, 40, 3);
  const auto whole = alone(r);
  Request half = r;
  half.max_new = 20;
  std::string first;
  for (const CacheMode from : {CacheMode::contiguous, CacheMode::growing, CacheMode::paged}) {
    Engine engine = load(keeping(from));
    (void)run(engine, half);
    ASSERT_TRUE(engine.save_cache(file("saved.kv")));
    if (first.empty()) first = bytes(file("saved.kv"));
    EXPECT_EQ(bytes(file("saved.kv")), first) << "a file does not tell its layout";
    for (const CacheMode to : {CacheMode::contiguous, CacheMode::growing, CacheMode::paged}) {
      Engine next = load(keeping(to));
      const auto restored = next.load_cache(file("saved.kv"));
      ASSERT_TRUE(restored) << restored.error().message;
      EXPECT_EQ(restored->saved, 1U);
      EXPECT_EQ(restored->kept, 1U);
      // The prompt and the 19 tokens whose rows were stored: all but the last are found.
      Request rest = r;
      rest.prompt.insert(rest.prompt.end(), whole.begin(), whole.begin() + 19);
      rest.max_new = 21;
      const Completion made = run(next, rest);
      EXPECT_EQ(made.cached_tokens, 78);
      EXPECT_EQ(made.miss, "");
      EXPECT_TRUE(std::equal(made.ids.begin(), made.ids.end(), whole.begin() + 19, whole.end()));
    }
  }
}

TEST_F(Files, EveryWindowAndLengthGoesOn) {
  // A window of 1 once saved a sequence without its last row, and one of 17 could not be cut back by one.
  for (const Pos window : {1, 2, 16, 17, 18}) {
    for (const int n : {1, 16, 17, 32, 33}) {
      for (const CacheMode mode : {CacheMode::contiguous, CacheMode::growing, CacheMode::paged}) {
        EngineOptions options = keeping(mode);
        options.span = Span{window, window > 2 ? 1 : 0};
        options.chunk = 4;
        Engine engine = load(options), next = load(options), plain = load(options);
        Request r = request(n, 0, 2);
        (void)run(engine, r);
        ASSERT_TRUE(engine.save_cache(file("saved.kv")));
        const auto restored = next.load_cache(file("saved.kv"));
        ASSERT_TRUE(restored) << restored.error().message << ", window " << window << ", " << n << " tokens";
        r.max_new = 8;
        const Completion made = run(next, r);
        EXPECT_EQ(made.ids, run(plain, r).ids) << "window " << window << ", " << n << " tokens";
        EXPECT_EQ(made.cached_tokens, n - 1) << "window " << window << ", " << n << " tokens";
      }
    }
  }
}

TEST_F(Files, NothingKeptIsNotSavedOverAnOldFile) {
  Engine engine = load(keeping(CacheMode::contiguous));
  (void)run(engine, request(20, 2, 3));
  ASSERT_TRUE(engine.save_cache(file("saved.kv")));
  const std::string old = bytes(file("saved.kv"));
  Engine empty = load(keeping(CacheMode::contiguous));
  const auto saved = empty.save_cache(file("saved.kv"));
  ASSERT_FALSE(saved);
  EXPECT_THAT(saved.error().message, HasSubstr("nothing is kept"));
  EXPECT_EQ(bytes(file("saved.kv")), old);
}

TEST_F(Files, RefusedFilesChangeNothing) {
  Engine engine = load(keeping(CacheMode::paged));
  (void)run(engine, request(60, 2, 3));
  ASSERT_TRUE(engine.save_cache(file("saved.kv")));
  const auto refusal = [&](EngineOptions options, const std::string& model = kModel) {
    Engine other = load(std::move(options), model);
    const auto loaded = other.load_cache(file("saved.kv"));
    EXPECT_TRUE(other.cache_report().kept.empty());
    EXPECT_EQ(run(other, request(60, 2, 3)).cached_tokens, 0);
    return loaded ? std::string() : loaded.error().message;
  };
  EngineOptions int8 = keeping(CacheMode::paged), window = int8;
  int8.kv = {{Codec::int8, Codec::int8}};
  window.span = Span{30, 0};
  EXPECT_THAT(refusal(int8), HasSubstr("f32 in the file, int8 in the cache"));
  EXPECT_THAT(refusal(window), HasSubstr("window"));
  EXPECT_THAT(refusal(keeping(CacheMode::paged), "random:llama-tiny,ctx=200,seed=1"), HasSubstr("weights"));
  EXPECT_THAT(refusal(keeping(CacheMode::paged), "random:llama-tiny,ctx=150"), HasSubstr("max_position_embeddings"));
  EngineOptions none;
  Engine plain = load(none);
  EXPECT_FALSE(plain.load_cache(file("saved.kv")));
  EXPECT_FALSE(plain.save_cache(file("other.kv")));
}

TEST(CacheUse, AGrowingCacheCopiesWhatTheFormulaSays) {
  // bytes a token x (n1^2 - n0^2) / 2, up to half a cell a step: whole cells are copied, and none before the first
  // step.
  EngineOptions options;
  options.cache = CacheMode::growing;
  Engine engine = load(options, "random:char,ctx=512");
  const double n0 = 128, n1 = 500;
  (void)run(engine, request(128, static_cast<int>(n1 - n0) + 1, 1));
  const auto token = static_cast<double>(engine.info().cache_bytes_per_token);
  const double formula = token * (n1 * n1 - n0 * n0) / 2;
  const auto copied = static_cast<double>(engine.cache_report().usage.copied);
  EXPECT_GE(copied, formula - token * (n1 - n0) / 2);
  EXPECT_LE(copied, formula + token * (n1 - n0) * 16);
}

}  // namespace
}  // namespace stet
