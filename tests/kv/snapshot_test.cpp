// Saved caches: the same bytes back, from and into every layout.
#include <gtest/gtest.h>

#include <cstring>

#include "kv/index_snapshot.hpp"
#include "kv/snapshot_caches.hpp"

namespace stet::kv_test {
namespace {

using kv::Reencode;
using kv::SaveSequence;
using kv::Snapshot;

class Kinds : public testing::TestWithParam<Kind> {};

TEST_P(Kinds, RestoreIntoAnyOtherWithTheSameBytes) {
  const Folder folder;
  auto cache = cache_of(GetParam(), mixed_spec());
  std::vector<Tokens> all;
  std::vector<Seq> seqs;
  std::vector<SaveSequence> save;
  for (const int length : {0, 1, 16, 47, 200}) all.push_back(tokens_of(length, length));
  for (const Tokens& tokens : all) seqs.push_back(fill(*cache, tokens));
  for (std::size_t i = 0; i < all.size(); ++i) save.push_back({seqs[i], all[i], i % 2 == 0 ? "" : "salt"});
  ASSERT_TRUE(kv::save(folder / "file", small_identity(), *cache, save));

  const auto snapshot = Snapshot::open(folder / "file");
  ASSERT_TRUE(snapshot) << snapshot.error().message;
  EXPECT_TRUE(snapshot->verify());
  EXPECT_EQ(snapshot->identity(), small_identity());
  ASSERT_EQ(snapshot->sequences().size(), all.size());
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    auto other = cache_of(kind, mixed_spec());
    std::vector<SaveSequence> again;
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(snapshot->sequences()[i].tokens, all[i]);
      EXPECT_EQ(snapshot->sequences()[i].salt, save[i].salt);
      const auto seq = snapshot->restore(i, small_identity(), *other);
      ASSERT_TRUE(seq) << seq.error().message;
      EXPECT_EQ(difference(*cache, seqs[i], *other, *seq), "") << i;
      again.push_back({*seq, all[i], save[i].salt});
    }
    // What was saved before is there again in full, so that it gives the same file.
    ASSERT_TRUE(kv::save(folder / "again", small_identity(), *other, again));
    const auto second = Snapshot::open(folder / "again");
    ASSERT_TRUE(second);
    if (GetParam().retain == Retain::visible && GetParam().layout != Layout::growing) {
      EXPECT_EQ(read_file(folder / "file"), read_file(folder / "again"));
    }
    // Both go on alike.
    Tokens mine = all.back(), theirs = all.back();
    const Tokens more = tokens_of(30, 9);
    const Seq fork = cache->fork(seqs.back(), static_cast<Pos>(all.back().size())).value();
    ASSERT_TRUE(append(*cache, fork, mine, more));
    ASSERT_TRUE(append(*other, again.back().seq, theirs, more));
    EXPECT_EQ(difference(*cache, fork, *other, again.back().seq), "");
    EXPECT_TRUE(cache->close(fork));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Kinds, testing::ValuesIn(kinds()),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(Snapshots, DoNotDependOnLayoutPageOrWhatElseWasInTheCache) {
  const Folder folder;
  std::optional<std::string> first;
  const Tokens tokens = tokens_of(150, 3);
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    // Only those that evict alike hold the same rows of windows.
    if (kind.retain == Retain::all || kind.layout == Layout::growing) continue;
    // Without poison, slots hold what another sequence left there.
    auto cache = cache_of(kind, mixed_spec(), 6, !first);
    const Seq before = fill(*cache, tokens_of(299, 1)), other = fill(*cache, tokens_of(99, 1));
    EXPECT_TRUE(cache->close(before));
    const Seq seq = fill(*cache, tokens, first ? 7 : 150);
    EXPECT_TRUE(cache->close(other));
    const SaveSequence save{seq, tokens, ""};
    ASSERT_TRUE(kv::save(folder / "file", small_identity(), *cache, {&save, 1}));
    if (!first) first = read_file(folder / "file");
    EXPECT_EQ(read_file(folder / "file"), *first);
  }
}

TEST(Snapshots, HoldTheRowsWhereTheFormatSays) {
  const Folder folder;
  auto cache = contiguous(small_spec());
  const Tokens tokens = tokens_of(20, 2);
  const Seq seq = fill(*cache, tokens);
  const SaveSequence save{seq, tokens, ""};
  ASSERT_TRUE(kv::save(folder / "file", small_identity(), *cache, {&save, 1}));
  const std::string file = read_file(folder / "file");
  const auto u64 = [&](std::size_t at) {
    std::uint64_t value = 0;
    std::memcpy(&value, file.data() + at, sizeof value);
    return value;
  };
  EXPECT_EQ(file.substr(0, 8), "\x89STETKV\n");
  EXPECT_EQ(u64(8), 1U);
  EXPECT_EQ(u64(16), file.size());
  // Cells of layer 0: K f32 [1][16], V int8 [16][1] padded to 64, 16 scales.
  const std::size_t cells = 64 + u64(24);
  const View view = cache->peek(seq, 0).value();
  for (std::size_t pos = 0; pos < 20; ++pos) {
    const std::string row = raw_row(view, static_cast<Pos>(pos));
    const std::size_t cell = cells + pos / 16 * 192, slot = pos % 16;
    EXPECT_EQ(file.substr(cell + slot * 4, 4), row.substr(0, 4));
    EXPECT_EQ(file.substr(cell + 64 + slot, 1), row.substr(4, 1));
    EXPECT_EQ(file.substr(cell + 128 + slot * 4, 4), row.substr(5, 4));
  }
  // Slots of the second cell without a row.
  EXPECT_EQ(file.substr(cells + 192 + 4 * 4, 12 * 4), std::string(48, '\0'));
}

TEST(Snapshots, RestoreFewerTokensWhereTheRowsAreThere) {
  const Folder folder;
  auto cache = contiguous(mixed_spec());
  const Tokens tokens = tokens_of(60, 4);
  const SaveSequence save{fill(*cache, tokens), tokens, ""};
  ASSERT_TRUE(kv::save(folder / "file", small_identity(), *cache, {&save, 1}));
  const auto snapshot = Snapshot::open(folder / "file");
  ASSERT_TRUE(snapshot);
  const Pos oldest = cache->oldest_restorable(save.seq).value();
  for (Pos upto = -1; upto <= 61; ++upto) {
    const auto seq = snapshot->restore(0, small_identity(), *cache, {Reencode::refused, upto});
    if (upto < oldest || upto > 60) {
      EXPECT_FALSE(seq) << upto;
      continue;
    }
    ASSERT_TRUE(seq) << seq.error().message;
    const Seq fork = cache->fork(save.seq, upto).value();
    EXPECT_EQ(difference(*cache, fork, *cache, *seq), "");
    EXPECT_TRUE(cache->close(fork));
    EXPECT_TRUE(cache->close(*seq));
  }
}

TEST(Snapshots, ReencodeOnlyWhenAsked) {
  const Folder folder;
  CacheSpec from = small_spec(), to = small_spec();
  from.layers[0].k = from.layers[0].v = Codec::f64;
  auto cache = contiguous(from), other = contiguous(to), direct = contiguous(to);
  const Tokens tokens = tokens_of(40, 5);
  const SaveSequence save{fill(*cache, tokens), tokens, ""};
  ASSERT_TRUE(kv::save(folder / "file", small_identity(), *cache, {&save, 1}));
  expect_refused(load(folder / "file", small_identity(), *other),
                 "layer 0: keys are f64 in the file, f32 in the cache; re-encoding them loses precision");
  const auto snapshot = Snapshot::open(folder / "file");
  const auto seq = snapshot->restore(0, small_identity(), *other, {Reencode::allowed, {}});
  ASSERT_TRUE(seq) << seq.error().message;
  // The file has what was given, in f64: encoded again it is what encoding gives at once.
  EXPECT_EQ(difference(*direct, fill(*direct, tokens), *other, *seq), "");
}

}  // namespace
}  // namespace stet::kv_test
