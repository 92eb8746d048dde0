from django.urls import path

from playground.sharing import views

urlpatterns = [
    path("<slug:token>", views.demo, name="demo"),
    path("<slug:token>/embed", views.embed, name="demo_embed"),
    path("<slug:token>/preview.png", views.preview, name="demo_preview"),
]
