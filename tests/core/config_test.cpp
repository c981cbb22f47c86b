#include "core/config.hpp"

#include <gtest/gtest.h>

namespace stet {
namespace {

// transformers' ACT2FN: gelu_new and gelu_pytorch_tanh are both the tanh approximation, gelu is the exact one.
TEST(Activation, KnowsTheNamesOfConfigs) {
  EXPECT_EQ(activation_named("gelu_new"), Activation::gelu_tanh);
  EXPECT_EQ(activation_named("gelu_pytorch_tanh"), Activation::gelu_tanh);
  EXPECT_EQ(activation_named("gelu"), Activation::gelu_erf);
  EXPECT_EQ(activation_named("relu"), Activation::relu);
  EXPECT_EQ(activation_named("silu"), Activation::silu);
  EXPECT_EQ(activation_named("swish"), Activation::silu);
  for (const char* other : {"", "gelu_fast", "GELU", "SiLU", "relu ", "gelu_tanh"})
    EXPECT_EQ(activation_named(other), std::nullopt) << other;
}

TEST(Activation, HasANameOfItsOwn) {
  EXPECT_STREQ(name_of(Activation::gelu_tanh), "gelu_tanh");
  EXPECT_STREQ(name_of(Activation::gelu_erf), "gelu_erf");
  EXPECT_STREQ(name_of(Activation::relu), "relu");
  EXPECT_STREQ(name_of(Activation::silu), "silu");
}

}  // namespace
}  // namespace stet
