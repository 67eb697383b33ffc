// Gives an instantiation of a kernel template its name.
#ifndef TMO_MPS_INSTANTIATE_H
#define TMO_MPS_INSTANTIATE_H

#define TMO_INSTANTIATE(name, function, ...) \
  template [[host_name(name)]] [[kernel]] decltype(function<__VA_ARGS__>) function<__VA_ARGS__>;

#endif
