// Saved caches: what is refused, and what a write that fails leaves.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>

#include "kv/index_snapshot.hpp"
#include "kv/snapshot_caches.hpp"

namespace stet::kv_test {
namespace {

using kv::Identity;
using kv::Reencode;
using kv::SaveSequence;
using kv::Snapshot;

class Refused : public testing::Test {
 protected:
  void SetUp() override {
    cache = contiguous(small_spec());
    const Tokens a = tokens_of(19, 1), b = tokens_of(5, 2);
    const std::vector<SaveSequence> save = {{fill(*cache, a), a, "salt"}, {fill(*cache, b), b, ""}};
    ASSERT_TRUE(kv::save(path, small_identity(), *cache, save));
    good = read_file(path);
    before = cache->usage();
    ASSERT_TRUE(load(path, small_identity(), *cache));
  }

  void expect_unchanged() const {
    const CacheUsage now = cache->usage();
    EXPECT_EQ(now.seqs, before.seqs);
    EXPECT_EQ(now.tokens, before.tokens);
    EXPECT_EQ(now.live, before.live);
  }

  // In place: a new file for each byte takes milliseconds.
  void set_byte(std::size_t at, int value) const {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(at)).put(static_cast<char>(value));
    ASSERT_TRUE(file.flush());
  }

  // The file with other tables, all checksums right.
  void write_edited(const std::function<void(kv::SnapshotTables&)>& edit) const {
    auto header = kv::parse_header(std::as_bytes(std::span(good)).first(64), "");
    auto tables = kv::parse_tables(std::as_bytes(std::span(good)).subspan(64, header->table_bytes), good.size(), "");
    edit(*tables);
    const auto bytes = kv::table_bytes(*tables);
    ASSERT_EQ(bytes.size(), header->table_bytes) << "the edit moved the cells";
    header->tables = base::digest_of(bytes);
    const auto head = kv::header_bytes(*header);
    std::string file(reinterpret_cast<const char*>(head.data()), head.size());
    file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    write_file(path, file + good.substr(file.size()));
  }

  const Folder folder;
  const fs::path path = folder / "file";
  std::unique_ptr<Cache> cache;
  std::string good;
  CacheUsage before;
};

TEST_F(Refused, EachFlippedByte) {
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const int mask : {1 << (at % 8), 0xFF}) {
      set_byte(at, good[at] ^ mask);
      const auto result = load(path, small_identity(), *cache);
      ASSERT_FALSE(result) << "byte " << at;
      EXPECT_EQ(result.error().code, Code::corrupt);
      EXPECT_EQ(result.error().message.rfind(path.string() + ": ", 0), 0U) << result.error().message;
      EXPECT_NE(result.error().message.find(at < 8 ? "mark" : "offset"), std::string::npos) << result.error().message;
      EXPECT_EQ(result.error().message.find('\n'), std::string::npos);
      // Without verify too: restoring checks what it uses.
      const auto snapshot = Snapshot::open(path);
      bool all = snapshot.has_value();
      for (std::size_t i = 0; snapshot && i < snapshot->sequences().size(); ++i) {
        const auto seq = snapshot->restore(i, small_identity(), *cache);
        all = all && seq;
        if (seq) {
          EXPECT_TRUE(cache->close(*seq));
        }
      }
      ASSERT_FALSE(all) << "byte " << at;
    }
    set_byte(at, good[at]);
  }
  expect_unchanged();
}

TEST_F(Refused, EachShorterFileAndALongerOne) {
  for (std::size_t size = good.size(); size-- > 0;) {
    fs::resize_file(path, size);
    expect_refused(load(path, small_identity(), *cache), "ends at offset " + std::to_string(size));
  }
  write_file(path, good + '\0');
  expect_refused(load(path, small_identity(), *cache),
                 "goes on after its end at offset " + std::to_string(good.size()));
  expect_unchanged();
}

TEST_F(Refused, AnotherModelByName) {
  Identity model = small_identity();
  model.config = "model_type=llama\nrms_norm_eps=1e-05\nrope_theta=500000\n";
  expect_refused(load(path, model, *cache), "rope_theta is 10000 in the file, 500000 in the model");
  model.config = "model_type=llama\nrms_norm_eps=1e-06\nrope_theta=500000\nsliding_window=8\n";
  expect_refused(load(path, model, *cache), "rms_norm_eps is 1e-05 in the file, 1e-06 in the model (2 more settings");
  model = small_identity();
  model.weights.bytes[15] ^= 1;
  expect_refused(load(path, model, *cache), "weights differ: digest 0102030000");
  model = small_identity();
  model.numerics = 2;
  expect_refused(load(path, model, *cache), "numerics version is 1 in the file, 2 in this build");
  expect_unchanged();
}

TEST_F(Refused, AnEditedConfigByName) {
  const auto replace = [](std::string& text, const std::string& from, const std::string& to) {
    text.replace(text.find(from), from.size(), to);
  };
  write_edited([&](auto& tables) { replace(tables.identity.config, "rope_theta=10000", "rope_theta=10001"); });
  expect_refused(load(path, small_identity(), *cache), "rope_theta is 10001 in the file, 10000 in the model");
  write_edited([&](auto& tables) { replace(tables.identity.config, "eps=1e-05", "eps=1e-06"); });
  expect_refused(load(path, small_identity(), *cache), "rms_norm_eps is 1e-06 in the file, 1e-05 in the model");
  write_edited([&](auto& tables) { replace(tables.identity.config, "rope", "\x1b[2J"); });
  expect_refused(load(path, small_identity(), *cache), "a config that is not plain text");
  expect_unchanged();
}

TEST_F(Refused, AnotherFormatVersion) {
  std::string bad = good;
  bad[8] = 2;
  const auto own = base::digest_of(std::as_bytes(std::span(bad)).first(48));
  std::memcpy(bad.data() + 48, own.bytes.data(), own.bytes.size());
  write_file(path, bad);
  const auto result = load(path, small_identity(), *cache);
  expect_refused(result, "format version 2; this build reads version 1");
  EXPECT_EQ(result.error().code, Code::unsupported);
}

TEST_F(Refused, OtherShapesByName) {
  const auto refused = [&](const std::function<void(CacheSpec&)>& edit, const std::string& part) {
    CacheSpec spec = small_spec();
    edit(spec);
    auto other = contiguous(spec);
    expect_refused(load(path, small_identity(), *other, Reencode::allowed), part);
    EXPECT_EQ(other->usage().seqs, 0);
  };
  refused([](CacheSpec& s) { s.layers.pop_back(); }, "2 layers in the file, 1 in the cache");
  refused([](CacheSpec& s) { s.layers[1].kv_heads = 3; }, "layer 1: kv_heads is 1 in the file, 3 in the cache");
  refused([](CacheSpec& s) { s.layers[0].k_dim = 2; }, "layer 0: k_dim is 1 in the file, 2 in the cache");
  refused([](CacheSpec& s) { s.layers[0].v_dim = 2; }, "layer 0: v_dim is 1 in the file, 2 in the cache");
  refused([](CacheSpec& s) { s.layers[1].span.window = 7; }, "layer 1: window is 6 in the file, 7 in the cache");
  refused([](CacheSpec& s) { s.layers[1].span.sinks = 1; }, "layer 1: sinks is 0 in the file, 1 in the cache");
}

TEST_F(Refused, ASequenceTooLongAndOneTooMany) {
  CacheOptions options;
  options.max_len = 18;
  auto tight = make_cache(small_spec(), options);
  const auto snapshot = Snapshot::open(path);
  auto seq = snapshot->restore(0, small_identity(), **tight);
  ASSERT_FALSE(seq);
  EXPECT_EQ(seq.error().code, Code::capacity);
  ASSERT_TRUE(snapshot->restore(1, small_identity(), **tight));
  seq = snapshot->restore(1, small_identity(), **tight);
  ASSERT_FALSE(seq);
  EXPECT_EQ(seq.error().code, Code::capacity);
  EXPECT_FALSE(snapshot->restore(2, small_identity(), *cache));
}

TEST_F(Refused, TablesThatContradictThemselves) {
  const auto refused = [&](const std::function<void(kv::SnapshotTables&)>& edit, const std::string& part) {
    write_edited(edit);
    const auto result = load(path, small_identity(), *cache);
    expect_refused(result, part);
    EXPECT_EQ(result.error().code, Code::corrupt) << part;
  };
  refused([](auto& t) { t.sequences[0].blocks[0].first = -16; }, "sequence 0: layer 0: rows");
  refused([](auto& t) { t.sequences[0].blocks[0].first = 20; }, "sequence 0: layer 0: rows");
  refused([](auto& t) { t.sequences[0].blocks[0].kept = 8; }, "sequence 0: layer 0: rows");
  refused([](auto& t) { t.sequences[0].blocks[0].kept = std::int64_t{1} << 62; }, "sequence 0: layer 0: rows");
  refused([](auto& t) { t.sequences[0].blocks[1].offset += 64; }, "sequence 0: layer 1: cells at offset");
  refused([](auto& t) { t.sequences[0].blocks[1].first = 18; }, "");
  refused([](auto& t) { t.sequences[1].tokens[3] = -1; }, "sequence 1: a negative token id");
  refused([](auto& t) { t.layers.layers[0].kv_heads = 0; }, "kv_heads 0 is not positive");
  refused([](auto& t) { t.layers.layers[0].kv_heads = 1 << 30; }, "cells at offset");
  refused([](auto& t) { t.layers.layers[0].k_dim = t.layers.layers[0].v_dim = 2147483647; }, "");
  refused([](auto& t) { t.layers.layers[0].k = static_cast<Codec>(77); }, "codec of k 77 is unknown");
  expect_unchanged();
}

// A small fuzzer: tables with bytes changed at random, which must be refused or make sense, under sanitizers too.
TEST_F(Refused, AnyTablesAtAll) {
  Random random(1);
  const std::size_t table_size = kv::parse_header(std::as_bytes(std::span(good)).first(64), "")->table_bytes;
  const std::string tables = good.substr(64, table_size);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bad = tables;
    for (int n = pick(random, 1, 3); n > 0; --n) {
      const auto at = static_cast<std::size_t>(pick(random, 0, static_cast<int>(bad.size()) - 1));
      bad[at] = static_cast<char>(chance(random, 50) ? 0xFF : random());
    }
    if (chance(random, 10)) bad.resize(static_cast<std::size_t>(pick(random, 0, static_cast<int>(bad.size()))));
    const auto parsed = kv::parse_tables(std::as_bytes(std::span(bad)), good.size(), "file");
    accepted += parsed ? 1 : 0;
    if (!parsed) {
      EXPECT_EQ(parsed.error().message.find('\n'), std::string::npos) << parsed.error().message;
    }
  }
  EXPECT_GT(accepted, 0) << "the changes hit nothing but what is checked";
  EXPECT_LT(accepted, 20000);
}

TEST_F(Refused, WhatIsNoSnapshot) {
  expect_refused(load(folder / "none", small_identity(), *cache), "none");
  write_file(path, "");
  expect_refused(load(path, small_identity(), *cache), "ends at offset 0");
  write_file(path, std::string(200, 'x'));
  expect_refused(load(path, small_identity(), *cache), "is not a saved cache");
  expect_refused(load(path.parent_path(), small_identity(), *cache), "is a directory");
}

TEST_F(Refused, SequencesThatCannotBeSaved) {
  const Tokens tokens = tokens_of(19, 1);
  SaveSequence save{{77, 1}, tokens, ""};
  EXPECT_EQ(kv::save(path, small_identity(), *cache, {&save, 1}).error().code, Code::not_found);
  const Seq open = cache->open().value();
  save = {open, tokens, ""};
  expect_refused(kv::save(path, small_identity(), *cache, {&save, 1}), "sequence 0 to save has 0 rows and 19 tokens");
  EXPECT_EQ(read_file(path), good);
}

// ---- Writing that fails

class Writing : public Refused {
 protected:
  Result<void> save_other(const fs::path& to, const std::function<bool()>& stop = {}) {
    if (!other) {
      tokens = tokens_of(250, 8);
      other = fill(*cache, tokens);
    }
    const SaveSequence save{*other, tokens, ""};
    return kv::save(to, small_identity(), *cache, {&save, 1}, stop);
  }
  void expect_old() {
    EXPECT_EQ(read_file(path), good);
    EXPECT_EQ(folder.files(), std::vector<std::string>{"file"});
  }
  Tokens tokens;
  std::optional<Seq> other;
};

TEST_F(Writing, IntoAFolderThatIsNotThere) {
  expect_refused(save_other(folder / "none" / "file"), "none/file");
  expect_old();
}

TEST_F(Writing, OverADeviceOrAFolder) {
  expect_refused(save_other("/dev/full"), "/dev/full: is there and not a regular file");
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
  expect_refused(save_other(path.parent_path()), "is there and not a regular file");
  expect_old();
}

TEST_F(Writing, ThroughASymbolicLink) {
  fs::create_symlink("file", folder / "link");
  ASSERT_TRUE(save_other(folder / "link"));
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_NE(read_file(path), good);
  EXPECT_TRUE(load(path, small_identity(), *cache));
}

TEST_F(Writing, ThatIsInterrupted) {
  for (int calls = 0; calls < 2; ++calls) {
    int left = calls;
    const auto result = save_other(path, [&] { return left-- == 0; });
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Code::interrupted);
    expect_old();
  }
}

// In a child process, where files may not grow beyond a limit: the write that crosses it fails as on a full disk.
TEST_F(Writing, OnAFullDisk) {
  ASSERT_TRUE(save_other(folder / "whole"));
  const std::uint64_t whole = fs::file_size(folder / "whole");
  fs::remove(folder / "whole");
  for (const std::uint64_t limit : {std::uint64_t{0}, std::uint64_t{64}, whole / 2, whole - 1}) {
    const pid_t child = ::fork();
    if (child == 0) {
      std::signal(SIGXFSZ, SIG_IGN);
      const rlimit most{limit, limit};
      if (::setrlimit(RLIMIT_FSIZE, &most) != 0) std::_Exit(3);
      const auto result = save_other(path);
      std::_Exit(!result && result.error().code == Code::io &&
                         result.error().message == path.string() + ": writing failed: File too large"
                     ? 0
                     : 4);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "limit " << limit;
    expect_old();
  }
}

// A process that saves again and again is killed at some moment: the file is the old one or the new one.
TEST_F(Writing, ThatIsKilled) {
  ASSERT_TRUE(save_other(folder / "second"));
  const std::string second = read_file(folder / "second");
  Random random(2);
  int seen_second = 0;
  for (int round = 0; round < 40; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto first = tokens_of(19, 1);
      for (;;) {
        write_file(folder / "started", "x");
        if (!save_other(path)) std::_Exit(1);
      }
    }
    while (!fs::exists(folder / "started")) ::usleep(100);
    ::usleep(static_cast<useconds_t>(pick(random, 0, 4000)));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
    const std::string now = read_file(path);
    ASSERT_TRUE(now == good || now == second) << "round " << round << ": " << now.size() << " bytes";
    ASSERT_TRUE(load(path, small_identity(), *cache));
    seen_second += now == second ? 1 : 0;
    fs::remove(folder / "started");
    write_file(path, good);
  }
  EXPECT_GT(seen_second, 0);
}

}  // namespace
}  // namespace stet::kv_test
