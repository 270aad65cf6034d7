// In the place of torch's own, which torch/types.h includes for the registration of operators:
// headlab registers none, and it brings the dispatcher's templates along.
#pragma once
