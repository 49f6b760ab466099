// torch's ProcessGroupGloo.hpp includes this name; nothing of it is used through that header.
#pragma once
