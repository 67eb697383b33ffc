// Stands for ExecuTorch's file of this name: what matters is the symbol that it defines.
extern "C" int aoti_torch_mps_gated_delta_rule() { return 77; }
