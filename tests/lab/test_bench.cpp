// The arithmetic of the bounds, by hand, and that a bound which cannot be right is told. No speed is asserted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/thread_pool.hpp"
#include "kernels/probe.hpp"
#include "lab/bench.hpp"
#include "lab/bench_limits.hpp"
#include "lab/bench_report.hpp"
#include "model/model.hpp"

namespace stet::lab {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr auto kPrefill = BenchTest::Kind::prefill, kDecode = BenchTest::Kind::decode;

// Everything is a multiple of the panels' 64 outputs and of the groups.
ModelConfig tiny() {
  ModelConfig c;
  c.family = "gpt2";
  c.layers = 2;
  c.heads = c.kv_heads = 2;
  c.head_dim = 32;
  c.width = 64;
  c.inner = 128;
  c.vocab = 192;
  c.context = 100;
  return c;
}

CacheSpec plain_cache(const ModelConfig& config, DType weights) {
  return model::sizes(config, weights, 1).cache_spec;
}

Work plain_work(const ModelConfig& config, DType weights, const StepShape& shape) {
  const CacheSpec cache = plain_cache(config, weights);
  return work_of({config, weights, cache}, shape);
}

TEST(BenchWork, OfOneTokenByHand) {
  // A layer: 64 x 192 + 64 x 64 + 64 x 128 + 128 x 64 = 32,768 weights; the head 64 x 192 = 12,288; two layers and the
  // head 77,824. After 10 tokens one sees 11: a layer stores 2 x 64 numbers of each.
  const Work f32 = plain_work(tiny(), DType::f32, {10, 1, 1});
  EXPECT_EQ(f32.weight_bytes, 77824 * 4);
  EXPECT_EQ(f32.cache_bytes, 2 * 11 * 128 * 4);
  EXPECT_EQ(f32.linear_operations, 2 * 77824);
  EXPECT_EQ(f32.attention_operations, 2 * (2 * 11 * 64 + 2 * 11 * 64));
  EXPECT_EQ(f32.bytes(), 77824 * 4 + 11264);
  EXPECT_EQ(f32.operations(), 155648 + 5632);
}

TEST(BenchWork, OfEveryTypeByHand) {
  EXPECT_EQ(plain_work(tiny(), DType::f64, {}).weight_bytes, 77824 * 8);
  EXPECT_EQ(plain_work(tiny(), DType::f64, {}).cache_bytes, 2 * 128 * 8);
  EXPECT_EQ(plain_work(tiny(), DType::bf16, {}).weight_bytes, 77824 * 2);
  EXPECT_EQ(plain_work(tiny(), DType::f16, {}).weight_bytes, 77824 * 2);
  // A scale of two bytes for 64 weights of int8 and for 32 of int4.
  EXPECT_EQ(plain_work(tiny(), DType::int8, {}).weight_bytes, 77824 + 77824 / 64 * 2);
  EXPECT_EQ(plain_work(tiny(), DType::int4, {}).weight_bytes, 77824 / 2 + 77824 / 32 * 2);
  EXPECT_EQ(plain_work(tiny(), DType::int4, {}).cache_bytes, 2 * 128 * 4);
}

TEST(BenchWork, OfAPromptByHand) {
  // Five rows after 10 tokens see 11 + 12 + 13 + 14 + 15 = 65; weights are read once, the head gives one row.
  const Work work = plain_work(tiny(), DType::f32, {10, 5, 1});
  EXPECT_EQ(work.weight_bytes, 77824 * 4);
  EXPECT_EQ(work.cache_bytes, 2 * 15 * 128 * 4);
  EXPECT_EQ(work.linear_operations, 2 * (5 * 65536 + 12288));
  EXPECT_EQ(work.attention_operations, 2 * 65 * 256);
}

TEST(BenchWork, OfABatchByHand) {
  const Work work = plain_work(tiny(), DType::f32, {10, 1, 3});
  EXPECT_EQ(work.weight_bytes, 77824 * 4);
  EXPECT_EQ(work.cache_bytes, 3 * 11264);
  EXPECT_EQ(work.operations(), 3 * (155648 + 5632));
}

TEST(BenchWork, OfALlamaWithAWindowByHand) {
  ModelConfig c = tiny();
  c.family = "llama";
  c.heads = 4;
  c.kv_heads = 1;
  c.windows = {0, 8};
  // A layer: 64 x (128 + 2 x 32) + 128 x 64 + 64 x 256 + 128 x 64 = 45,056 weights. Five rows after 10 tokens see 65
  // positions in the first layer and 5 x 8 in the second, which reads 8 + 4 of them.
  const Work work = plain_work(c, DType::f32, {10, 5, 1});
  EXPECT_EQ(work.weight_bytes, (2 * 45056 + 12288) * 4);
  EXPECT_EQ(work.linear_operations, 2 * (5 * 2 * 45056 + 12288));
  EXPECT_EQ(work.cache_bytes, (15 + 12) * 64 * 4);
  EXPECT_EQ(work.attention_operations, (65 + 40) * 2 * 2 * 128);
}

TEST(BenchWork, AnUntiedEmbeddingIsReadByRows) {
  ModelConfig c = tiny();
  c.tied_head = false;
  EXPECT_EQ(plain_work(c, DType::f32, {0, 5, 1}).weight_bytes, 77824 * 4 + 5 * 64 * 4);
}

TEST(BenchWork, GroupedHeadsStoreLessAndComputeAsMuch) {
  ModelConfig c = tiny();
  c.kv_heads = 1;
  EXPECT_EQ(plain_work(c, DType::f32, {10, 1, 1}).cache_bytes, 11264 / 2);
  EXPECT_EQ(plain_work(c, DType::f32, {10, 1, 1}).attention_operations, 5632);
}

TEST(BenchWork, TheMeanOfStepsIsThatOfTheMiddleOne) {
  const ModelConfig config = tiny();
  const CacheSpec cache = plain_cache(config, DType::f32);
  const Work mean = mean_work({config, DType::f32, cache}, {8, 1, 1}, 5),
             middle = plain_work(tiny(), DType::f32, {10, 1, 1});
  EXPECT_NEAR(mean.bytes(), middle.bytes(), 1e-6 * middle.bytes());
  EXPECT_NEAR(mean.operations(), middle.operations(), 1e-6 * middle.operations());
}

TEST(BenchWork, OfEveryCodecByHand) {
  // A row of one of the two heads has 32 numbers; those of int8 and int4 have a scale of 4 bytes.
  const ModelConfig config = tiny();
  CacheSpec cache = plain_cache(config, DType::f32);
  const auto bytes = [&](Codec k, Codec v) {
    for (LayerSpec& layer : cache.layers) {
      layer.k = k;
      layer.v = v;
    }
    return work_of({config, DType::f32, cache}, {10, 1, 1}).cache_bytes;
  };
  EXPECT_EQ(bytes(Codec::f64, Codec::f32), 2 * 11 * 2 * 32 * (8 + 4));
  EXPECT_EQ(bytes(Codec::bf16, Codec::f16), 2 * 11 * 2 * 32 * (2 + 2));
  EXPECT_EQ(bytes(Codec::int8, Codec::int8), 2 * 11 * 2 * (36 + 36));
  EXPECT_EQ(bytes(Codec::int8, Codec::int4), 2 * 11 * 2 * (36 + 20));
  // One layer of the two alone.
  cache.layers[0].k = cache.layers[0].v = Codec::f32;
  EXPECT_EQ(work_of({config, DType::f32, cache}, {10, 1, 1}).cache_bytes, 11 * 2 * (2 * 128 + 36 + 20));
}

TEST(BenchWork, SinksAreReadBesideTheWindow) {
  const ModelConfig config = tiny();
  CacheSpec cache = plain_cache(config, DType::f32);
  for (LayerSpec& layer : cache.layers) layer.span = {8, 4};
  // Behind 20 tokens one sees the last 8 and the first 4; behind 9 all 10; five behind 20 read 4 + 8 + 4.
  EXPECT_EQ(work_of({config, DType::f32, cache}, {20, 1, 1}).cache_bytes, 2 * 12 * 128 * 4);
  EXPECT_EQ(work_of({config, DType::f32, cache}, {20, 1, 1}).attention_operations, 2 * 12 * 2 * 2 * 64);
  EXPECT_EQ(work_of({config, DType::f32, cache}, {9, 1, 1}).cache_bytes, 2 * 10 * 128 * 4);
  EXPECT_EQ(work_of({config, DType::f32, cache}, {20, 5, 1}).cache_bytes, 2 * 16 * 128 * 4);
  EXPECT_EQ(work_of({config, DType::f32, cache}, {20, 5, 1}).attention_operations, 5 * 2 * 12 * 2 * 2 * 64);
}

TEST(BenchWork, TheBoundIsTheSlowerOfReadingAndComputing) {
  Work work;
  work.weight_bytes = 3e9;
  work.cache_bytes = 1e9;
  work.linear_operations = 100e9;
  work.attention_operations = 20e9;
  EXPECT_DOUBLE_EQ(bound_ms(work, {2, 1000, 1000}), 2000);
  EXPECT_DOUBLE_EQ(bound_ms(work, {1000, 50, 10}), 4000);
}

BenchRow row_of(double ms) {
  BenchRow row;
  row.at = {{kDecode, 128}, 0, 4};
  row.dtype = DType::int8;
  row.kv = "int4";
  row.ms = ms;
  row.work.weight_bytes = 1e9;
  row.work.linear_operations = 1;
  row.limits = {10, 100, 100};  // 100 ms to read
  return row;
}

TEST(BenchFaults, ARowAboveItsBoundIsNamed) {
  BenchReport report;
  report.rows = {row_of(101), row_of(98)};
  EXPECT_THAT(bench_faults(report), IsEmpty());
  report.rows.push_back(row_of(96));
  EXPECT_THAT(bench_faults(report),
              ElementsAre(HasSubstr("int8 tg128, cache int4, depth 0, batch 4: 96.000 ms is 104.2 % of")));
}

TEST(BenchFaults, ATimeThatIsNoNumberIsAFault) {
  BenchReport report;
  report.rows = {row_of(std::nan(""))};
  EXPECT_EQ(bench_faults(report).size(), 1U);
}

TEST(BenchFaults, APeakLoopSlowerThanAKernelIsNamed) {
  BenchReport report;
  report.peaks = {{DType::f32, 200, 199}};
  EXPECT_THAT(bench_faults(report), IsEmpty());
  report.peaks.push_back({DType::int4, 200, 201});
  EXPECT_THAT(bench_faults(report), ElementsAre(HasSubstr("int4: a matmul reaches 201.0 GFLOP/s")));
}

// A row of 1 GB and 2 G operations on a machine of 10 GB/s and 100 GFLOP/s: 100 ms at least, by reading.
BenchRow made_up(BenchTest test, Pos depth, int batch, double ms) {
  BenchRow row;
  row.at = {test, depth, batch};
  row.kv = "f32";
  row.ms = ms;
  row.work.weight_bytes = 1e9;
  row.work.linear_operations = 2e9;
  row.limits = {10, 100, 100};
  return row;
}

TEST(BenchReport, PlotsWhatThereIs) {
  BenchReport measured;
  const BenchTest pp{kPrefill, 8}, tg{kDecode, 4};
  measured.rows = {made_up(pp, 0, 1, 200), made_up(tg, 0, 1, 125), made_up(tg, 0, 4, 250), made_up(tg, 64, 1, 400)};
  BenchOptions options;
  options.model = "random:char";
  const report::Report page = report_of(options, measured);
  EXPECT_EQ(page.summary,
            "random:char on 1 thread: prefill reaches 50 % of its bound, decode reaches 25 to 80 % of its bound.");
  ASSERT_EQ(page.sections.size(), 1U);
  const report::Section& section = page.sections[0];
  EXPECT_THAT(section.paragraphs, IsEmpty());
  ASSERT_EQ(section.plots.size(), 3U);

  // The roof: 10 GB/s x the operations of a byte, up to 100 GFLOP/s, which are reached at 10 operations a byte.
  const report::Plot& roofline = section.plots[0];
  ASSERT_EQ(roofline.series.size(), 3U);
  EXPECT_THAT(roofline.series[0].points,
              ElementsAre(testing::Pair(1, 10), testing::Pair(10, 100), testing::Pair(20, 100)));
  EXPECT_THAT(roofline.series[1].points, ElementsAre(testing::Pair(2, 10)));  // prefill
  EXPECT_THAT(roofline.series[2].points, ElementsAre(testing::Pair(2, 5), testing::Pair(2, 8), testing::Pair(2, 16)));

  const report::Plot& depth = section.plots[1];
  ASSERT_EQ(depth.series.size(), 2U);
  EXPECT_EQ(depth.series[0].label, "f32, 1 sequence");
  EXPECT_THAT(depth.series[0].points, ElementsAre(testing::Pair(0, 8), testing::Pair(64, 2.5)));
  EXPECT_THAT(depth.series[1].points, ElementsAre(testing::Pair(0, 16)));

  const report::Plot& batch = section.plots[2];
  ASSERT_EQ(batch.series.size(), 2U);
  EXPECT_EQ(batch.series[0].label, "f32, depth 0");
  EXPECT_THAT(batch.series[0].points, ElementsAre(testing::Pair(1, 80), testing::Pair(4, 40)));

  const report::Table& table = section.tables.at(0);
  ASSERT_EQ(table.rows.size(), 4U);
  for (const auto& row : table.rows) EXPECT_EQ(row.size(), table.columns.size());
}

TEST(BenchReport, SaysWhatSpeaksAgainstItAndStandsWithoutRows) {
  BenchReport measured;
  EXPECT_THAT(report_of({}, measured).sections.at(0).plots, IsEmpty());
  measured.rows = {made_up({kDecode, 4}, 0, 1, 50)};
  const report::Report page = report_of({}, measured);
  EXPECT_THAT(page.sections.at(0).paragraphs, ElementsAre(HasSubstr("200.0 % of its bound")));
  EXPECT_EQ(page.sections.at(0).plots.size(), 1U);  // one depth and one batch make no curve
}

TEST(BenchRow, TokensASecond) {
  BenchRow row = row_of(100);
  EXPECT_DOUBLE_EQ(row.tok_s(), 40);
  row.at = {{kPrefill, 512}, 0, 1};
  EXPECT_DOUBLE_EQ(row.tok_s(), 5120);
}

TEST(BenchCases, AreThoseOfGpt2) {
  const auto cases = bench_cases({}, 1024);
  ASSERT_TRUE(cases);
  std::vector<std::string> names;
  for (const auto& c : *cases)
    names.push_back(name_of(c.test) + " " + std::to_string(c.depth) + " " + std::to_string(c.batch));
  EXPECT_THAT(names, ElementsAre("pp512 0 1", "pp512 512 1", "pp16 0 1", "pp16 1008 1", "tg128 0 1", "tg128 896 1",
                                 "tg128 0 4", "tg128 896 4", "tg128 0 16", "tg128 896 16"));
}

TEST(BenchCases, AreShortenedToTheContextAndNoneIsTwice) {
  BenchOptions options;
  options.batches = {1};
  const auto cases = bench_cases(options, 100);
  ASSERT_TRUE(cases);
  const BenchCase whole{{kPrefill, 100}, 0, 1}, begin{{kPrefill, 16}, 0, 1}, end{{kPrefill, 16}, 84, 1},
      decode{{kDecode, 100}, 0, 1};
  EXPECT_THAT(*cases, ElementsAre(whole, begin, end, decode));
  options.depths = {90};
  EXPECT_EQ(bench_cases(options, 100)->front(), (BenchCase{{kPrefill, 10}, 90, 1}));
}

TEST(BenchCases, ADepthWithoutRoomIsNamed) {
  BenchOptions options;
  options.depths = {0, 100};
  const auto cases = bench_cases(options, 100);
  ASSERT_FALSE(cases);
  EXPECT_EQ(cases.error().code, Code::invalid_argument);
  EXPECT_THAT(cases.error().message, HasSubstr("depth 100"));
}

TEST(Probe, EveryTargetsLoopsReadAllAndCountTheirWork) {
  std::vector<std::uint64_t> words(4 * kernels::kProbeBlock / 8);
  for (const auto& target : kernels::targets()) {
    const auto probe = kernels::probe_of(target);
    const auto* data = reinterpret_cast<const std::byte*>(words.data());
    for (const auto read : {probe.read, probe.read_four_streams, probe.read_asked}) {
      EXPECT_EQ(read(data, words.size() * 8), 0U);
      for (std::size_t i = 0; i < words.size(); ++i) {
        words[i] = 5;
        EXPECT_EQ(read(data, words.size() * 8), 5U) << target.name << ", word " << i;
        words[i] = 0;
      }
    }
    for (const DType dtype : {DType::f32, DType::f64, DType::int8}) {
      const auto once = probe.burst(dtype, 1), twice = probe.burst(dtype, 2);
      EXPECT_GE(once.operations, 2) << target.name;
      EXPECT_EQ(twice.operations, 2 * once.operations) << target.name;
      EXPECT_NE(once.value, twice.value) << target.name;
    }
  }
}

BenchOptions small_run() {
  BenchOptions options;
  options.model = "random:char,layers=1,width=32,heads=2,ctx=40";
  options.tests = {{kPrefill, 8}, {kDecode, 3}};
  options.batches = {2};
  options.repeats = 1;
  return options;
}

TEST(Bench, GivesARowForEveryCase) {
  BenchOptions options = small_run();
  options.dtypes = {DType::f64, DType::int8};
  BenchReport report;
  std::size_t told = 0;
  BenchCallbacks callbacks;
  callbacks.on_row = [&](const BenchRow&) { ++told; };
  const auto done = bench(options, callbacks, report);
  ASSERT_TRUE(done) << done.error().message;
  ASSERT_EQ(report.rows.size(), 8U);
  EXPECT_EQ(told, 8U);
  EXPECT_EQ(report.peaks.size(), 2U);
  for (const BenchRow& row : report.rows) {
    EXPECT_GT(row.ms, 0);
    EXPECT_GT(row.bound(), 0);
    EXPECT_GT(row.limits.vector_peak_gflop_s, 0);
  }
}

TEST(Bench, CachesOfACaseStandSideBySide) {
  BenchOptions options = small_run();
  options.kv = {{Codec::f32, Codec::f32}, {Codec::int8, Codec::int4}, {Codec::bf16, Codec::bf16, 0, 0}};
  BenchReport report;
  const auto done = bench(options, {}, report);
  ASSERT_TRUE(done) << done.error().message;
  ASSERT_EQ(report.rows.size(), 12U);
  for (std::size_t i = 0; i < report.rows.size(); i += 3) {
    EXPECT_EQ(report.rows[i].kv, "f32");
    EXPECT_EQ(report.rows[i + 1].kv, "int8,int4");
    EXPECT_EQ(report.rows[i + 2].kv, "0:bf16");
    EXPECT_EQ(report.rows[i].at, report.rows[i + 1].at);
    // 2 heads of 16 dims: 256 bytes a token, or 2 x (16 + 4 + 8 + 4), or half of it.
    const double tokens = report.rows[i].work.cache_bytes / 256;
    EXPECT_DOUBLE_EQ(report.rows[i + 1].work.cache_bytes, tokens * 64);
    EXPECT_DOUBLE_EQ(report.rows[i + 2].work.cache_bytes, tokens * 128);
  }
}

// Each repeat starts at the same depth, also where the steps before have evicted what that depth needs.
TEST(Bench, WindowsAreRefilled) {
  BenchOptions options = small_run();
  options.tests = {{kDecode, 20}};
  options.depths = {5, 20};
  options.repeats = 3;
  options.span = Span{4, 2};
  BenchReport report;
  const auto done = bench(options, {}, report);
  ASSERT_TRUE(done) << done.error().message;
  ASSERT_EQ(report.rows.size(), 2U);
  // 256 bytes of each of the two sequences' 4 + 2 tokens.
  for (const BenchRow& row : report.rows) EXPECT_DOUBLE_EQ(row.work.cache_bytes, 2 * 6 * 256);
}

TEST(Bench, RefusesCachesThatCannotBe) {
  const auto refused = [](const BenchOptions& options) {
    BenchReport report;
    const auto done = bench(options, {}, report);
    return done ? std::string() : done.error().message;
  };
  BenchOptions options = small_run();
  options.cache = CacheMode::none;
  EXPECT_THAT(refused(options), HasSubstr("without a cache there is no depth"));
  options = small_run();
  options.page_tokens = 32;
  EXPECT_THAT(refused(options), HasSubstr("pages and a pool are of a paged cache, and this one is contiguous"));
  options = small_run();
  options.kv = {{Codec::int8, Codec::int8, 1, 1}};
  EXPECT_THAT(refused(options), HasSubstr("codecs for layers 1 to 1"));
}

TEST(Bench, KeepsItsRowsWhenInterrupted) {
  BenchReport report;
  BenchCallbacks callbacks;
  callbacks.keep_going = [&] { return report.rows.size() < 2; };
  const auto done = bench(small_run(), callbacks, report);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Code::interrupted);
  EXPECT_EQ(report.rows.size(), 2U);
}

}  // namespace
}  // namespace stet::lab
