# opgraft_add_op(DIR): the operator folder DIR (op.yaml, *.cc) becomes the shared object <name>.so,
# <name> being the folder's, with hidden symbols and its op.yaml in an ELF note.
# Needs: OPGRAFT_INCLUDE_DIRS, OPGRAFT_MANIFEST_TOOL, OPGRAFT_OPS_DIR (output).

# How a source that includes opgraft/simd.h is compiled: SSE4 is the baseline, wider targets are chosen
# at run time.
set(OPGRAFT_SIMD_OPTIONS -msse4.2 -mpclmul -maes -fno-math-errno -fno-gnu-unique
  -Wno-address -Wno-restrict -Wno-unused-parameter)
set(OPGRAFT_SIMD_DEFINITIONS "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_AVX3_DL)")
if(OPGRAFT_ONE_TARGET)
  set(OPGRAFT_TARGETS SSE4 AVX2 AVX3)  # as Target of include/opgraft/simd_target.h
  list(FIND OPGRAFT_TARGETS "${OPGRAFT_ONE_TARGET}" OPGRAFT_TARGET)
  if(OPGRAFT_TARGET EQUAL -1)
    message(FATAL_ERROR "OPGRAFT_ONE_TARGET must be one of ${OPGRAFT_TARGETS}, got '${OPGRAFT_ONE_TARGET}'")
  endif()
  list(APPEND OPGRAFT_SIMD_DEFINITIONS OPGRAFT_ONE_TARGET=${OPGRAFT_TARGET} HWY_COMPILE_ONLY_STATIC)
  if(OPGRAFT_TARGET GREATER_EQUAL 1)
    list(APPEND OPGRAFT_SIMD_OPTIONS -mavx2 -mfma -mf16c -mbmi -mbmi2)
  endif()
  if(OPGRAFT_TARGET EQUAL 2)
    list(APPEND OPGRAFT_SIMD_OPTIONS -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512cd)
  endif()
endif()
# The descriptor must be constant data. UBSan's checks for null make GCC take a function template's address for one
# that may be null, and no constant; AddressSanitizer sees what they would have seen.
list(APPEND OPGRAFT_SIMD_OPTIONS "$<$<CXX_COMPILER_ID:GNU>:-fno-sanitize=null,nonnull-attribute,returns-nonnull-attribute>")

# opgraft_simd(TARGET): its sources are compiled so.
function(opgraft_simd target)
  target_compile_definitions(${target} PRIVATE ${OPGRAFT_SIMD_DEFINITIONS})
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${OPGRAFT_SIMD_OPTIONS}>")
  set_target_properties(${target} PROPERTIES CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endfunction()

function(opgraft_add_op dir)
  get_filename_component(dir "${dir}" ABSOLUTE)
  get_filename_component(name "${dir}" NAME)
  set(target op_${name})
  set(gen "${CMAKE_CURRENT_BINARY_DIR}/gen/${name}")
  file(MAKE_DIRECTORY "${gen}")
  file(GLOB sources CONFIGURE_DEPENDS "${dir}/*.cc")
  add_custom_command(
    OUTPUT "${gen}/op_manifest.h" "${gen}/op_manifest.S"
    COMMAND ${OPGRAFT_MANIFEST_TOOL} "${dir}/op.yaml" "${gen}"
    DEPENDS "${dir}/op.yaml" ${OPGRAFT_MANIFEST_TOOL} VERBATIM)
  # .incbin reads op.yaml: the object must follow it.
  set_source_files_properties("${gen}/op_manifest.S" PROPERTIES OBJECT_DEPENDS "${dir}/op.yaml")
  set_source_files_properties(${sources} PROPERTIES OBJECT_DEPENDS "${gen}/op_manifest.h")
  add_library(${target} MODULE ${sources} "${gen}/op_manifest.S" "${gen}/op_manifest.h")
  target_include_directories(${target} PRIVATE "${dir}" "${gen}" ${OPGRAFT_INCLUDE_DIRS})
  target_compile_definitions(${target} PRIVATE OPGRAFT_BUILDING_OP)
  opgraft_simd(${target})
  set_target_properties(${target} PROPERTIES
    PREFIX "" OUTPUT_NAME "${name}" LIBRARY_OUTPUT_DIRECTORY "${OPGRAFT_OPS_DIR}")
  if(TARGET opgraft_products)
    target_link_libraries(${target} PRIVATE opgraft_products)
  endif()
  target_link_options(${target} PRIVATE -Wl,--no-undefined -Wl,-z,now -Wl,--as-needed)
  set_property(GLOBAL APPEND PROPERTY OPGRAFT_OPS ${target})
endfunction()
