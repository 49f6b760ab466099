#pragma once

/// Where this project lies. In a file of its own, so that the path of a clone is no part of what ccache compares.
extern const char* const kProjectFolder;
