# Units: files that include neighbours of one folder and are compiled in their place, for torch's
# headers cost more than what stands in a source of ours. They are written into the build tree with
# includes relative to the project (CMake's own unity files name absolute paths), so that checkouts
# share what the compiler cache holds. What stands in an anonymous namespace therefore needs a name
# that is its own within the folder.
#
# A file that is edited is compiled alone from then on, and a new one was never joined:
# BUILD/edited_sources names them (scripts/cmake/edited_sources).
set(_edited_list ${CMAKE_BINARY_DIR}/edited_sources)
execute_process(COMMAND ${CMAKE_SOURCE_DIR}/scripts/cmake/edited_sources ${_edited_list}
                COMMAND_ERROR_IS_FATAL ANY)
file(STRINGS ${_edited_list} _edited)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_edited_list})

# headlab_units(COMPILED NAME SOURCES...): sets COMPILED to units of at most sixteen neighbours and to
# the sources that are compiled alone. Each folder is cut by the alphabet into parts of one length: an
# added file moves few others.
function(headlab_units out name)
  set(size 16)
  if(HEADLAB_ALONE)
    set(size 1)
  endif()
  set(compiled "")
  set(folders "")
  foreach(source IN LISTS ARGN)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${CMAKE_SOURCE_DIR} OUTPUT_VARIABLE path)
    if("new ${path}" IN_LIST _edited)
      list(APPEND compiled ${source})
    else()
      cmake_path(GET path PARENT_PATH folder)
      list(APPEND folders ${folder})
      list(APPEND in_${folder} ${path})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder IN LISTS folders)
    list(SORT in_${folder})
    list(LENGTH in_${folder} files)
    math(EXPR parts "(${files} + ${size} - 1) / ${size}")
    foreach(part RANGE 1 ${parts})
      math(EXPR begin "(${part} - 1) * ${files} / ${parts}")
      math(EXPR length "${part} * ${files} / ${parts} - ${begin}")
      list(SUBLIST in_${folder} ${begin} ${length} joined)
      foreach(path IN LISTS joined)
        if("changed ${path}" IN_LIST _edited)
          list(REMOVE_ITEM joined ${path})
          list(APPEND compiled ${CMAKE_SOURCE_DIR}/${path})
        endif()
      endforeach()
      list(LENGTH joined length)
      if(length LESS 2)
        list(TRANSFORM joined PREPEND ${CMAKE_SOURCE_DIR}/)
        list(APPEND compiled ${joined})
      else()
        set(unit ${CMAKE_BINARY_DIR}/units/${name}/${folder}_${part}.cpp)
        list(TRANSFORM joined REPLACE "(.+)" "#include \"\\1\"\n")
        list(JOIN joined "" text)
        file(CONFIGURE OUTPUT ${unit} CONTENT "${text}" @ONLY)  # written only when it changes
        list(APPEND compiled ${unit})
      endif()
    endforeach()
  endforeach()
  set(${out} ${compiled} PARENT_SCOPE)
endfunction()
