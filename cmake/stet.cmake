# Build settings shared by all targets, and one function for each kind of target.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

set(STET_SANITIZE "" CACHE STRING "Sanitizers for -fsanitize, e.g. address,undefined")
option(STET_FUZZ "Build the libFuzzer targets (clang++ only)" OFF)
option(STET_TESTS "Build the tests" ON)

# -ffp-contract=off: the numerics contract says where a multiply and an add fuse; the compiler must not add to that.
add_compile_options(-Wall -Wextra -Wpedantic -ffp-contract=off)
if(STET_SANITIZE)
  add_compile_options(-fsanitize=${STET_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${STET_SANITIZE})
endif()

if(STET_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link) # coverage feedback from the rooms, not from the target's own file alone
  add_custom_target(fuzzers)
endif()

# stet_room(NAME SOURCES... [LINK libraries...]): one object library a room. tools/check_deps.py checks who includes whom.
function(stet_room name)
  cmake_parse_arguments(ROOM "" "" "LINK" ${ARGN})
  add_library(stet_${name} OBJECT ${ROOM_UNPARSED_ARGUMENTS})
  set_target_properties(stet_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_include_directories(stet_${name} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(stet_${name} PRIVATE tl::expected ${ROOM_LINK})
endfunction()

# stet_test(NAME SOURCES... ROOMS rooms... [LINK libraries...]): one GoogleTest program, every case a CTest test.
function(stet_test name)
  cmake_parse_arguments(TEST "" "" "ROOMS;LINK" ${ARGN})
  if(NOT STET_TESTS)
    return()
  endif()
  add_executable(${name} ${TEST_UNPARSED_ARGUMENTS})
  stet_link_rooms(${name} ${TEST_ROOMS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE
    STET_SOURCE_DIR="${PROJECT_SOURCE_DIR}" STET_SHARED_DIR="${PROJECT_SOURCE_DIR}/../shared")
  target_link_libraries(${name} PRIVATE GTest::gtest GTest::gmock GTest::gtest_main ${TEST_LINK})
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600)
endfunction()

# stet_fuzzer(NAME SOURCES... ROOMS rooms...): one libFuzzer program in the fuzz build; `./test --fuzz MINUTES` runs them.
function(stet_fuzzer name)
  cmake_parse_arguments(FUZZ "" "" "ROOMS" ${ARGN})
  if(NOT STET_FUZZ)
    return()
  endif()
  add_executable(${name} ${FUZZ_UNPARSED_ARGUMENTS})
  stet_link_rooms(${name} ${FUZZ_ROOMS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/targets)
  add_dependencies(fuzzers ${name})
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endfunction()

function(stet_link_rooms target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  foreach(room ${ARGN})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:stet_${room}>)
  endforeach()
  target_link_libraries(${target} PRIVATE tl::expected fmt::fmt nlohmann_json::nlohmann_json PkgConfig::PCRE2 Threads::Threads)
endfunction()
