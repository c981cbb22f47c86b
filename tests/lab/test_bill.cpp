// The published bill, figure by figure (shared/design/experiments.md), the presets that it is made of, and its report.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lab/bill_support.hpp"
#include "stet/engine.hpp"

namespace stet::lab {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

/// As it was printed: with so many digits behind the point.
std::string printed(double value, int digits) {
  return fmt::format("{:.{}f}", value, digits);
}

double gib(std::size_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(kGib);
}

double mb(std::size_t bytes) {
  return static_cast<double>(bytes) / 1e6;
}

TEST(PublishedBill, BytesOfATokenInF16) {
  const auto kib = [](const char* name) {
    return static_cast<double>(published(name, {1}).rows.front().per_token) / static_cast<double>(kKib);
  };
  EXPECT_EQ(kib("gpt2"), 36);
  EXPECT_EQ(kib("llama-2-7b"), 512);
  EXPECT_EQ(kib("llama-3-8b"), 128);
  EXPECT_EQ(kib("llama-3-70b"), 320);
}

TEST(PublishedBill, TheTableAt8kAnd128k) {
  // Rows, cells and what is reserved all come out as printed: 8,192 and 131,072 are whole cells, tables are small.
  const auto row = [](const char* name, Pos context, int digits) {
    const BillRow one = published(name, {context}).rows.front();
    EXPECT_EQ(one.rows, one.per_sequence) << name;
    EXPECT_EQ(printed(gib(one.rows), digits), printed(gib(one.total), digits)) << name;
    return printed(gib(one.rows), digits);
  };
  EXPECT_EQ(row("gpt2", 8192, 3), "0.281");
  EXPECT_EQ(row("llama-2-7b", 8192, 1), "4.0");
  EXPECT_EQ(row("llama-3-8b", 8192, 1), "1.0");
  EXPECT_EQ(row("llama-3-70b", 8192, 1), "2.5");
  EXPECT_EQ(row("llama-3-8b", 131072, 0), "16");
  EXPECT_EQ(row("llama-3-70b", 131072, 0), "40");
  EXPECT_EQ(published("llama-3-8b", {8192}).rows.front().rows, kGib);
}

TEST(PublishedBill, PastItsContextIsMarked) {
  EXPECT_TRUE(published("gpt2", {8192}).rows.front().past_context);
  EXPECT_FALSE(published("gpt2", {1024}).rows.front().past_context);
  EXPECT_TRUE(published("gpt2", {1025}).rows.front().past_context);
  EXPECT_FALSE(published("llama-3-8b", {8192}).rows.front().past_context);
  EXPECT_TRUE(published("llama-3-8b", {131072}).rows.front().past_context);
  EXPECT_FALSE(published("llama-3.1-8b", {131072}).rows.front().past_context);
}

TEST(PublishedBill, ABatchOf32At128kIs512Gib) {
  const BillRow row = published("llama-3-8b", {131072}, {32}).rows.front();
  EXPECT_EQ(row.rows, 512 * kGib);
  EXPECT_EQ(row.cells, 512 * kGib);
  EXPECT_EQ(printed(gib(row.total), 0), "512");
}

TEST(PublishedBill, EightSequencesOfLlama2NeedMoreThanItsWeights) {
  const Bill bill = published("llama-2-7b", {4096}, {1, 8});
  EXPECT_EQ(printed(mb(bill.rows[0].rows) / 1000, 1), "2.1");
  EXPECT_LT(bill.rows[0].rows, bill.model.weight_bytes);
  EXPECT_GT(bill.rows[1].rows, bill.model.weight_bytes);
  ASSERT_EQ(bill.passes_weights.size(), 2U);
  EXPECT_LT(bill.passes_weights[1].tokens, 4096);
}

TEST(PublishedBill, GroupedQueriesMakeTheLargerModelsCacheSmaller) {
  const Bill large = published("llama-2-70b", {4096}), small = published("llama-2-7b", {4096});
  EXPECT_EQ(printed(mb(large.rows[0].per_token), 2), "0.33");
  EXPECT_LT(large.rows[0].rows, small.rows[0].rows);
  EXPECT_EQ(std::lround(static_cast<double>(large.model.parameters) / static_cast<double>(small.model.parameters)), 10);
}

TEST(PublishedBill, OfTheCharacterGpt) {
  const Bill bill = published("char-gpt", {2048, 800}, {1}, {both(Codec::f64)}, DType::f64);
  EXPECT_EQ(bill.rows[0].per_token, 8 * kKib);
  EXPECT_EQ(printed(mb(bill.rows[0].rows), 1), "16.8");
  EXPECT_EQ(printed(static_cast<double>(bill.model.parameters) / 1e6, 2), "0.82");
  // 65 characters make 6.5556 MB: the published number is cut, not rounded. That of the cache is 6.5536.
  EXPECT_EQ(printed(std::floor(mb(bill.model.weight_bytes) * 100) / 100, 2), "6.55");
  EXPECT_EQ(printed(mb(bill.rows[1].rows), 2), "6.55");
  EXPECT_EQ(bill.passes_weights.front().tokens, 800);
}

TEST(PublishedBill, WhereAttentionIsTheRestOfAStep) {
  const Bill small = published("char-gpt", {128}), gpt2 = published("gpt2", {1024});
  EXPECT_EQ(small.attention_layers, 6 * 128);
  EXPECT_EQ(small.attention_layers, 768);
  EXPECT_EQ(small.attention_with_head, 776);
  EXPECT_EQ(gpt2.attention_layers, 6 * 768);
  EXPECT_EQ(gpt2.attention_layers, 4608);
  EXPECT_EQ(gpt2.attention_with_head, 6702);
}

TEST(PublishedBill, WhatATerminalShows) {
  EXPECT_EQ(binary_words(0), "0 B");
  EXPECT_EQ(binary_words(1023), "1023 B");
  EXPECT_EQ(binary_words(36 * 1024), "36.0 KiB");
  EXPECT_EQ(binary_words(512 * 1024), "512 KiB");
  EXPECT_EQ(binary_words(36864 * 8192.0), "0.281 GiB");
  EXPECT_EQ(binary_words(static_cast<double>(kGib)), "1.00 GiB");
  EXPECT_EQ(binary_words(40.0 * static_cast<double>(kGib)), "40.0 GiB");
  EXPECT_EQ(binary_words(512.0 * static_cast<double>(kGib)), "512 GiB");
  EXPECT_EQ(binary_words(2048.0 * static_cast<double>(kGib)), "2.00 TiB");
  const std::string text = report::text_of(rows_table(published("gpt2", {8192})));
  EXPECT_THAT(text, HasSubstr("36.0 KiB"));
  EXPECT_THAT(text, HasSubstr("0.281 GiB"));
  EXPECT_THAT(text, HasSubstr("past its context of 1,024"));
}

TEST(Presets, HaveThePublishedNumbersOfParameters) {
  // As the safetensors files on the Hub add up to. Of Gemma 3 from 4b on without the vision tower (416,866,032) and its
  // projection (1,152 x (width + 1)): 4,300,079,472, 12,187,325,040 and 27,432,406,640 with them.
  const std::pair<const char*, std::int64_t> published[] = {{"gpt2", 124439808},
                                                            {"gpt2-medium", 354823168},
                                                            {"gpt2-large", 774030080},
                                                            {"gpt2-xl", 1557611200},
                                                            {"llama-2-7b", 6738415616},
                                                            {"llama-2-13b", 13015864320},
                                                            {"llama-2-70b", 68976648192},
                                                            {"llama-3-8b", 8030261248},
                                                            {"llama-3-70b", 70553706496},
                                                            {"llama-3.1-8b", 8030261248},
                                                            {"llama-3.1-70b", 70553706496},
                                                            {"mistral-7b", 7241732096},
                                                            {"qwen2.5-0.5b", 494032768},
                                                            {"qwen2.5-1.5b", 1543714304},
                                                            {"qwen2.5-3b", 3085938688},
                                                            {"qwen2.5-7b", 7615616512},
                                                            {"qwen2.5-14b", 14770033664},
                                                            {"qwen2.5-32b", 32763876352},
                                                            {"qwen2.5-72b", 72706203648},
                                                            {"gemma-3-270m", 268098176},
                                                            {"gemma-3-1b", 999885952},
                                                            {"gemma-3-4b", 4300079472 - 416866032 - 1152 * 2561},
                                                            {"gemma-3-12b", 12187325040 - 416866032 - 1152 * 3841},
                                                            {"gemma-3-27b", 27432406640 - 416866032 - 1152 * 5377},
                                                            {"deepseek-v2", 235741434880},
                                                            {"deepseek-v2-lite", 15706484224}};
  EXPECT_EQ(std::size(published) + 1, preset_names().size());
  for (const auto& [name, parameters] : published) {
    const auto shape = preset(name, DType::f16);
    ASSERT_TRUE(shape) << name;
    EXPECT_EQ(shape->parameters, parameters) << name;
    EXPECT_EQ(shape->cache.layers.size(), shape->attend_work.size()) << name;
    EXPECT_THAT(shape->source, HasSubstr("/")) << name;
    // Vectors are held in f32 and matrices padded to panels: less than 1 % more.
    const auto bytes = static_cast<double>(shape->weight_bytes);
    EXPECT_GE(bytes, 2.0 * static_cast<double>(parameters)) << name;
    EXPECT_LT(bytes, 2.02 * static_cast<double>(parameters)) << name;
  }
}

TEST(Presets, MlaStoresOneLatentForAllHeads) {
  // 512 + 64 numbers a layer, 60 layers. With keys of 192 and values of 128 for 128 heads it would be 71 times as much.
  const Bill bill = published("deepseek-v2", {1});
  EXPECT_EQ(bill.rows[0].per_token, 60 * (512 + 64) * 2);
  EXPECT_EQ(published("deepseek-v2-lite", {1}).rows[0].per_token, 27 * (512 + 64) * 2);
  EXPECT_THAT(bill.model.attention, HasSubstr("MLA"));
  // Each part has its own scale in int8.
  EXPECT_EQ(published("deepseek-v2", {1}, {1}, {both(Codec::int8)}).rows[0].per_token, 60 * (512 + 4 + 64 + 4));
}

TEST(Presets, ExpertsAreHeldAndNotAllUsed) {
  // 21 of 236 billion parameters a token (arXiv 2405.04434); the input embedding is looked up, not multiplied.
  const auto shape = preset("deepseek-v2", DType::f16);
  ASSERT_TRUE(shape);
  EXPECT_EQ(std::lround((shape->layer_work + shape->head_work) / 1e9), 21);
}

TEST(Presets, SayHowTheyAttend) {
  const auto attention = [](const char* name) { return preset(name, DType::f16)->attention; };
  EXPECT_EQ(attention("gpt2"), "MHA, 12 heads of 64");
  EXPECT_EQ(attention("llama-3-8b"), "GQA, 8 of 32 heads of 128");
  EXPECT_EQ(attention("gemma-3-1b"), "MQA, 1 of 4 heads of 256");
}

TEST(Presets, AnUnknownOneNamesItsNeighbours) {
  const auto message = [](const char* name) {
    const auto shape = preset(name, DType::f16);
    EXPECT_FALSE(shape);
    return shape ? "" : shape.error().message;
  };
  EXPECT_THAT(message("lama-3-8b"), HasSubstr("llama-3-8b"));
  EXPECT_THAT(message("Llama-3-70B"), HasSubstr("llama-3-70b"));
  EXPECT_THAT(message("gemma"), HasSubstr("gemma-3-"));
  EXPECT_EQ(message("no such model at all"), "there is no preset \"no such model at all\"");
  EXPECT_THAT(names_like(std::string(1000, 'x'), preset_names()), IsEmpty());
}

TEST(BillReport, HasTheTablesAndACurveForEachCache) {
  const auto shape = preset("llama-3-8b", DType::f16);
  BillOptions options;
  options.contexts = {8192, 131072};
  options.caches = {both(Codec::f16), both(Codec::int8)};
  options.rooms = {24 * kGib};
  const Bill bill = bill_of(*shape, options);
  const report::Report report = report_of(bill);
  EXPECT_EQ(report.title, "stet plan");
  EXPECT_THAT(report.summary, HasSubstr("llama-3-8b"));
  ASSERT_EQ(report.sections.size(), 2U);
  ASSERT_EQ(report.sections[0].plots.size(), 1U);
  const report::Plot& plot = report.sections[0].plots[0];
  EXPECT_TRUE(plot.x.log && plot.x.tokens && plot.y.log);
  ASSERT_EQ(plot.series.size(), 3U);
  EXPECT_EQ(plot.series[0].label, "f16");
  EXPECT_EQ(plot.series[1].label, "int8");
  EXPECT_THAT(plot.series[2].label, HasSubstr("weights"));
  for (const auto& series : plot.series) {
    for (std::size_t i = 1; i < series.points.size(); ++i) {
      EXPECT_LT(series.points[i - 1].first, series.points[i].first);
      EXPECT_LE(series.points[i - 1].second, series.points[i].second);
    }
    EXPECT_GE(series.points.back().first, 131072);
  }
  const auto names = [](const report::Table& table) {
    for (const auto& row : table.rows) EXPECT_EQ(row.size(), table.columns.size());
    return table.name;
  };
  EXPECT_EQ(names(report.sections[0].tables.at(0)), "plan");
  EXPECT_EQ(names(report.sections[1].tables.at(0)), "plan_fits");
  EXPECT_EQ(names(presets_table()), "presets");
  EXPECT_EQ(presets_table().rows.size(), preset_names().size());
  EXPECT_THAT(report::csv_of(report.sections[0].tables[0]), HasSubstr(",1073741824,"));
}

}  // namespace
}  // namespace stet::lab
