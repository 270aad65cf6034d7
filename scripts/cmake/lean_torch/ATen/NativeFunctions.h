// In the place of torch's own, the declarations of at::native, of which headlab calls none.
#pragma once
