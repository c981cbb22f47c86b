// int8 and int4 matmuls by AVX-512 VNNI, in plain intrinsics: Debian's Highway 1.0.3 would emit AVX-VNNI code for it,
// which Zen 4 lacks.
#pragma once

#include "kernels/kernels.hpp"

namespace stet::kernels {

/// Whether this CPU and build have it.
bool has_avx512_vnni() noexcept;

/// Rows and panels of an int8 or int4 matmul; the same bits as kernels/ref. Only where has_avx512_vnni().
void matmul_vnni(const Matmul<float>& op, Range rows, Range panels);

}  // namespace stet::kernels
