// Identities: what differs is named, and one digest stands for all of it.
#include "kv/identity.hpp"

#include <gtest/gtest.h>

namespace stet::kv_test {
namespace {

using kv::Identity;

Identity identity(const std::string& config) {
  Identity identity;
  identity.config = config;
  identity.numerics = 1;
  return identity;
}

std::string difference(const std::string& file, const std::string& model) {
  const auto same = kv::check_same(identity(file), identity(model), "F");
  return same ? "" : same.error().message;
}

TEST(Identity, NamesWhatDiffers) {
  EXPECT_EQ(difference("a=1\nb=2\n", "a=1\nb=2\n"), "");
  EXPECT_EQ(difference("a=1\nb=2\n", "a=1\nb=3\n"), "F: b is 2 in the file, 3 in the model");
  EXPECT_EQ(difference("a=1\n", "a=1\nb=3\n"), "F: b is not given in the file, 3 in the model");
  EXPECT_EQ(difference("a=1\nb=3\n", "a=1\n"), "F: b is 3 in the file, not given in the model");
  EXPECT_EQ(difference("a=1\nb=3\n", "a=2\nb=4\n"), "F: a is 1 in the file, 2 in the model (1 more setting differs)");
  EXPECT_EQ(difference("a=1\nb=3\nc=1\n", "a=2\nb=4\n"),
            "F: a is 1 in the file, 2 in the model (2 more settings differ)");
  EXPECT_EQ(difference("a=1\nb=2\n", "b=2\na=1\n"), "F: the config's text differs in its order");
  // A hostile file: no equals sign, no end of line, very long.
  EXPECT_EQ(difference("a", "a=1\n"), "F: a is  in the file, 1 in the model");
  EXPECT_EQ(difference("", "a=1\n"), "F: a is not given in the file, 1 in the model");
  EXPECT_LT(difference(std::string(5000, 'x') + "=" + std::string(5000, 'y'), "a=1\n").size(), 300U);
}

TEST(Identity, OneDigestCoversAllOfIt) {
  CacheSpec layers;
  layers.layers = {{1, 2, 3, Codec::f32, Codec::f32, {}}};
  const Identity plain = identity("a=1\n");
  const auto key = kv::key_of(plain, layers, "");
  EXPECT_EQ(kv::key_of(plain, layers, ""), key);
  std::vector<base::Digest> keys = {key, kv::key_of(plain, layers, "salt"), kv::key_of(identity("a=2\n"), layers, "")};
  Identity other = plain;
  other.weights.bytes[7] = 1;
  keys.push_back(kv::key_of(other, layers, ""));
  other = plain;
  other.numerics = 2;
  keys.push_back(kv::key_of(other, layers, ""));
  for (const LayerSpec& layer : std::vector<LayerSpec>{{2, 2, 3, Codec::f32, Codec::f32, {}},
                                                       {1, 3, 2, Codec::f32, Codec::f32, {}},
                                                       {1, 2, 3, Codec::int8, Codec::f32, {}},
                                                       {1, 2, 3, Codec::f32, Codec::int8, {}},
                                                       {1, 2, 3, Codec::f32, Codec::f32, {8, 0}},
                                                       {1, 2, 3, Codec::f32, Codec::f32, {8, 4}}}) {
    keys.push_back(kv::key_of(plain, {{layer}}, ""));
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(keys[i] == keys[j]) << i << " and " << j;
  }
}

}  // namespace
}  // namespace stet::kv_test
