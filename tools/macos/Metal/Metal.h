// Stands in for Apple's header where there is no SDK: the names that torch's MetalShaderLibrary.h and MPSDevice.h use
// in their declarations. Nothing here can be called.
#pragma once

@class MTLCompileOptions;
@protocol MTLBuffer;
@protocol MTLComputeCommandEncoder;
@protocol MTLComputePipelineState;
@protocol MTLDevice;
@protocol MTLFunction;
@protocol MTLLibrary;
