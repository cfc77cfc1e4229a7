# Writes the files FILES into OUT as entries {name, text} of a C++ table.
set(text "")
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  file(READ ${file} content)
  string(APPEND text "{\"${name}\", R\"cavs(${content})cavs\"},\n")
endforeach()
file(WRITE ${OUT} "${text}")
