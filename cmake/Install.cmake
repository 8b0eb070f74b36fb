# What `pip install` puts into the package opgraft/. The registry finds ops/ beside libopgraft.so.
if(NOT SKBUILD)
  return()
endif()
set_target_properties(opgraft-manifest PROPERTIES INSTALL_RPATH "\$ORIGIN/..;\$ORIGIN/../ops")
install(TARGETS opgraft LIBRARY DESTINATION opgraft)
install(TARGETS opgraft_threads ${op_targets} LIBRARY DESTINATION opgraft/ops)
install(TARGETS opgraft-manifest RUNTIME DESTINATION opgraft/bin)
if(TARGET opgraft_infer)
  set_target_properties(opgraft_infer PROPERTIES INSTALL_RPATH "\$ORIGIN/..;\$ORIGIN/../ops")
  install(TARGETS opgraft_infer RUNTIME DESTINATION opgraft/bin)
endif()
if(TARGET _core)
  install(TARGETS _core LIBRARY DESTINATION opgraft)
endif()
# The two libraries that a plain system lacks lie beside ours, under the names the loader asks for.
foreach(library fmt::fmt yaml-cpp)
  get_target_property(kind ${library} TYPE)
  if(kind STREQUAL "SHARED_LIBRARY")
    install(FILES "$<TARGET_FILE:${library}>" DESTINATION opgraft RENAME "$<TARGET_SONAME_FILE_NAME:${library}>")
  endif()
endforeach()

# For authors: headers, Highway's headers, the helpers of the kernels, the CMake helper.
install(DIRECTORY include/opgraft DESTINATION opgraft/include FILES_MATCHING PATTERN "*.h")
install(DIRECTORY aot_ops/common DESTINATION opgraft/include/aot_ops FILES_MATCHING PATTERN "*.h")
find_path(OPGRAFT_HWY_INCLUDE hwy/highway.h REQUIRED)
install(DIRECTORY "${OPGRAFT_HWY_INCLUDE}/hwy" DESTINATION opgraft/include FILES_MATCHING PATTERN "*.h"
  PATTERN "tests" EXCLUDE)
install(FILES cmake/OpgraftOp.cmake DESTINATION opgraft/cmake)
install(FILES cmake/op_project/CMakeLists.txt DESTINATION opgraft/cmake/op_project)
# For embedders in C++: the registry and the engine.
install(DIRECTORY registry infer DESTINATION opgraft/include FILES_MATCHING PATTERN "*.h")
